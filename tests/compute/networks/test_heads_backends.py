"""Every head on the backends against the reference op set; the tests in this folder compare the heads themselves."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from tests.checkpoints.reading import spec_of
from tests.compute.networks import tiny_decoders
from tests.compute.networks.case import texts_of
from tests.compute.networks.tiny_encoders import CASES, write_tiny
from tests.models import batch_of, pack_texts, read_tiny_spec, write_sentence_bert
from tests.products.test_lists import write_reranker

from vectord.checkpoints.checkpoint import open_checkpoint
from vectord.checkpoints.spec import ModelSpec, Output, YesNo
from vectord.compute.backends.base import BackendOptions
from vectord.compute.networks.heads import Head, heads_of, pooled_head, yes_no_head
from vectord.compute.networks.modernbert import ModernBert
from vectord.compute.networks.qwen2 import Qwen3
from vectord.compute.networks.weights import WeightReader
from vectord.compute.ops.numpy import NumpyOps, pack

TEXTS = texts_of(9, 1, 40, 2, 17)


def scores(folder: Path) -> ModelSpec:
    write_tiny(folder, "ModernBert", "ForSequenceClassification", num_labels=3, classifier_pooling="mean")
    return CASES["modernbert"].spec(folder, outputs=frozenset({"scores"}), labels=("a", "b", "c"))


def dense(folder: Path) -> ModelSpec:
    return read_tiny_spec(write_sentence_bert(folder, pooling="max", dense=(12,)), pooling="max", max_tokens=64)


def markers(folder: Path) -> ModelSpec:
    return spec_of(write_reranker(folder / "lists", slides=True))


def markers_head(spec: ModelSpec) -> Head[np.ndarray]:
    return heads_of(spec, NumpyOps())["markers"]


def dense_head(spec: ModelSpec) -> Head[np.ndarray]:
    return heads_of(spec, NumpyOps())["dense"]


def classifier_head(spec: ModelSpec) -> Head[np.ndarray]:
    weights = WeightReader(open_checkpoint(spec.weights), NumpyOps())
    classifier = ModernBert(spec.config, weights, NumpyOps()).classifier(len(spec.labels))
    return pooled_head(classifier.pooling, classifier.projections, NumpyOps())


def yes_no(folder: Path) -> ModelSpec:
    judge = YesNo(prefix="", body="", suffix="", instruction="", token_ids=(21, 4))
    folder = tiny_decoders.write("qwen3", folder, head="AutoModelForCausalLM")
    return read_tiny_spec(folder, outputs=frozenset({"scores"}), yes_no=judge, pooling=None)


def words_head(spec: ModelSpec) -> Head[np.ndarray]:
    weights = WeightReader(open_checkpoint(spec.weights), NumpyOps())
    return yes_no_head(Qwen3(spec.config, weights, NumpyOps()).head_rows((21, 4)), NumpyOps())


@pytest.mark.parametrize("name", ["openvino", "torch"])
@pytest.mark.parametrize(
    ("make", "output", "head"),
    [
        (dense, "dense", dense_head),
        (scores, "scores", classifier_head),
        (yes_no, "scores", words_head),
        (markers, "markers", markers_head),
    ],
    ids=["dense", "classifier", "yes and no", "markers"],
)
def test_heads_compute_in_float32(tmp_path: Path, make: Any, output: Output, head: Any, name: str) -> None:
    """In bfloat16 too: its logits of "yes" and "no" would have steps of 0.1, and rank many passages alike."""
    spec = make(tmp_path)
    spec = replace(spec, outputs=spec.outputs | {"tokens"})
    backend = import_module(f"vectord.compute.backends.{name}").load(
        spec, BackendOptions(device="cpu", dtype="bfloat16")
    )
    answers = backend.forward(batch_of(*TEXTS, outputs=(output, "tokens")), 0)
    backend.close()
    want = head(spec)(answers["tokens"].astype(np.float64), pack(pack_texts(*TEXTS)))
    np.testing.assert_allclose(answers[output], want, rtol=1e-5, atol=1e-5)
