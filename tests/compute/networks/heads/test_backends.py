"""Every head on the backends against the reference op set; the tests in this folder compare the heads themselves."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.compute.networks.case import numpy_answer, texts_of
from tests.compute.networks.tiny_encoders import CASES, write_tiny
from tests.models import batch_of, read_tiny_spec, write_sentence_bert

from vectord.checkpoints.spec import Colbert, ModelSpec, Output
from vectord.compute.backends.base import BackendOptions

TEXTS = texts_of(9, 1, 40, 2, 17)


def scores(folder: Path) -> ModelSpec:
    write_tiny(folder, "ModernBert", "ForSequenceClassification", num_labels=3, classifier_pooling="mean")
    return CASES["modernbert"].spec(folder, outputs=frozenset({"scores"}), labels=("a", "b", "c"))


def splade(folder: Path) -> ModelSpec:
    return CASES["bert"].spec(write_tiny(folder, "Bert", "ForMaskedLM"), outputs=frozenset({"splade"}))


def colbert(folder: Path) -> ModelSpec:
    spec = read_tiny_spec(write_sentence_bert(folder, dense=(16, 12)), max_tokens=64)
    facts: dict[str, Any] = {"colbert": Colbert(dimensions=12, dense_modules=spec.dense_modules), "max_tokens": 64}
    return read_tiny_spec(spec.folder, outputs=frozenset({"colbert"}), dense_modules=(), pooling=None, **facts)


def dense(folder: Path) -> ModelSpec:
    return read_tiny_spec(write_sentence_bert(folder, pooling="max", dense=(12,)), pooling="max", max_tokens=64)


@pytest.mark.parametrize("name", ["openvino", "torch"])
@pytest.mark.parametrize(
    ("make", "output"),
    [(scores, "scores"), (splade, "splade"), (colbert, "colbert"), (dense, "dense")],
    ids=["scores", "splade", "colbert", "dense"],
)
def test_outputs_equal_the_reference(tmp_path: Path, make: Any, output: Output, name: str) -> None:
    """In float32, for texts of mixed lengths in one batch."""
    spec = make(tmp_path)
    options = BackendOptions(device="cpu", dtype="float32")
    backend = import_module(f"vectord.compute.backends.{name}").load(spec, options)
    got = backend.forward(batch_of(*TEXTS, outputs=(output,)), 0)[output]
    backend.close()
    np.testing.assert_allclose(got, numpy_answer(spec, TEXTS, output), atol=1e-4)
