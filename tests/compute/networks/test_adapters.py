"""Adapters chosen by each text: the numbers of merged weights, in batches of any mixture, on every op set."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.compute.networks.case import numpy_answer, texts_of
from tests.compute.networks.jina_tasks import TASKS, task_states, write_jina_tasks
from tests.compute.networks.tiny_encoders import CASES
from tests.models import pack_texts

from vectord.checkpoints.adapters import read_tasks
from vectord.checkpoints.folder import open_folder
from vectord.checkpoints.spec import Located, ModelSpec
from vectord.compute.backends.base import BackendOptions, TokenBatch

TEXTS = texts_of(9, 1, 20, 2, 7)
MIXED = (2, 0, 1, 5, 2)  # the adapter of each text; 0: none


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_jina_tasks(tmp_path_factory.mktemp("jina"))


@pytest.fixture(scope="module")
def spec(folder: Path) -> ModelSpec:
    return spec_of(folder)


def spec_of(folder: Path, **facts: Any) -> ModelSpec:
    located = Located(folder=folder, model_id="jina", revision=None, source="folder")
    return CASES["xlm_roberta"].spec(folder, adapters=read_tasks(open_folder(located)), **facts)


@pytest.fixture(scope="module")
def expected(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[np.ndarray]:
    """The states of each text of a mixed batch, by transformers over merged weights."""
    names = [None if number == 0 else TASKS[number - 1] for number in MIXED]
    return [
        task_states(folder, [text], name, tmp_path_factory.mktemp("merged"))
        for text, name in zip(TEXTS, names, strict=True)
    ]


def test_a_mixed_batch_equals_merged_weights(spec: ModelSpec, expected: Sequence[np.ndarray]) -> None:
    """Words, token type, attention and MLP of each text use its own task."""
    got = numpy_answer(spec, TEXTS, adapters=np.array(MIXED, np.int32))
    np.testing.assert_allclose(got, np.concatenate(expected), atol=1e-5)
    plain = numpy_answer(spec, TEXTS)
    assert abs(got - plain).max() > 0.1  # the tasks matter in this model


@pytest.mark.parametrize("backend", ["openvino", "torch"])
def test_backends_compute_mixed_batches(backend: str, spec: ModelSpec, expected: Sequence[np.ndarray]) -> None:
    """A mixed batch gives each text what a batch of its own gives it, and texts without adapters the plain numbers."""
    loaded = import_module(f"vectord.compute.backends.{backend}").load(
        spec, BackendOptions(device="cpu", dtype="float32")
    )
    try:
        mixed = pack_texts(*TEXTS, adapters=np.array(MIXED, np.int32))
        got = loaded.forward(TokenBatch(texts=mixed, outputs=frozenset({"tokens"})), 0)["tokens"]
        plain = loaded.forward(TokenBatch(texts=pack_texts(*TEXTS), outputs=frozenset({"tokens"})), 0)["tokens"]
    finally:
        loaded.close()
    np.testing.assert_allclose(got, np.concatenate(expected), atol=1e-4)
    np.testing.assert_allclose(plain, numpy_answer(spec, TEXTS), atol=1e-4)
