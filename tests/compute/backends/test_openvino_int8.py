"""int8 of the openvino backend: products are in int8, vectors stay close, and a model that gains no speed has none."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bench.child import REPOSITORY
from tests.models import batch_of, random_texts, read_minilm_spec, read_tiny_spec, write_bert
from tokenizers import Tokenizer

from vectord.checkpoints.checkpoint import Weight
from vectord.checkpoints.spec import ModelSpec
from vectord.compute.backends import openvino_int8
from vectord.compute.backends.base import BackendOptions
from vectord.compute.backends.openvino import OpenvinoBackend, load
from vectord.compute.backends.openvino_plans import Compiler
from vectord.compute.ops.openvino import op, ov
from vectord.compute.ops.packed_weights import PackedWeightsOps
from vectord.compute.processor import multiplies_int8

BATCH = batch_of(*random_texts((9, 1, 30), seed=1))
needs_int8 = pytest.mark.skipif(not multiplies_int8(), reason="without int8 instructions the runtime rounds no inputs")


@pytest.fixture
def spec(tmp_path: Path) -> ModelSpec:
    """A model whose matrices have whole groups."""
    return read_tiny_spec(write_bert(tmp_path, hidden_size=128, intermediate_size=256))


def loaded(spec: ModelSpec) -> OpenvinoBackend:
    backend = load(spec, BackendOptions(device="cpu", dtype="int8", threads=2))
    assert isinstance(backend, OpenvinoBackend)
    backend.wait()
    return backend


def set_speed(monkeypatch: pytest.MonkeyPatch, speed: float) -> None:
    """Of products in int8, which on tests' machines is left to chance."""
    monkeypatch.setattr(openvino_int8, "multiplies_int8", lambda: True)
    monkeypatch.setattr(openvino_int8, "product_speed", lambda *_: speed)


def test_vectors_are_close_to_float32(
    spec: ModelSpec, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Close and not equal, alone and in a batch; forward_exact is in float32; the log has the speed."""
    set_speed(monkeypatch, 1.5)
    with caplog.at_level(logging.INFO):
        backend = loaded(spec)
    exact = load(spec, BackendOptions(device="cpu", dtype="float32", threads=2)).forward(BATCH, 0)["dense"]
    got = backend.forward(BATCH, 0)["dense"]
    cosines = (got * exact).sum(1) / np.linalg.norm(got, axis=1) / np.linalg.norm(exact, axis=1)
    assert 0.99 < cosines.min() < 0.999999
    np.testing.assert_allclose(backend.forward(replace(BATCH, alone=True), 0)["dense"], got, rtol=0.02, atol=0.02)
    np.testing.assert_allclose(backend.forward_exact(BATCH)["dense"], exact, atol=2e-5)
    assert backend.facts.dtype == "int8"
    assert "int8: products are 1.50 times as fast as in " in caplog.text


@needs_int8
def test_vectors_of_a_trained_model_stay_close() -> None:
    """Of MiniLM: docs/tuning.md promises a mean cosine of 0.999, and none below 0.99."""
    spec = read_minilm_spec()
    tokenizer = Tokenizer.from_file(str(spec.tokenizer))
    tokenizer.no_padding()
    passages = (REPOSITORY / "bench/calibration_texts.txt").read_text().splitlines()
    batch = batch_of(*(tokenizer.encode(text).ids for text in passages))
    compiler = Compiler(spec, ov.Core(), "f32", threads=2)
    exact = compiler.compile(1, groups=2).run(batch, 0)["dense"]
    compiler.packing = openvino_int8.INT8
    got = compiler.compile(1, groups=2).run(batch, 0)["dense"]
    cosines = (got * exact).sum(1) / np.linalg.norm(got, axis=1) / np.linalg.norm(exact, axis=1)
    assert cosines.mean() > 0.9985
    assert cosines.min() > 0.99


@needs_int8
def test_inputs_are_rounded_by_groups(spec: ModelSpec) -> None:
    """Half a step of the group's largest number is lost, and a number in the next group is kept."""
    compiler = Compiler(spec, ov.Core(), "f32", threads=1)
    ops = PackedWeightsOps(openvino_int8.INT8)
    x = op.parameter([-1, 256], np.float32)
    matrix = ops.matrix(Weight("w", "F32", np.ones((32, 256), np.float32)))
    model = ov.Model([ops.linear(x, matrix, None)], [x], "product")
    product = compiler.compile_model(model, streams=1, packing=openvino_int8.INT8)
    rows = np.zeros((3, 256), np.float32)
    rows[0, 0] = rows[1, 0] = rows[2, 0] = 127
    rows[1, 1] = rows[2, 128] = 0.4
    np.testing.assert_allclose(product([rows])[0][:, 0], [127, 127, 127.4], rtol=1e-6)


@pytest.mark.parametrize(
    ("reason", "has_int8", "speed", "width"),
    [
        ("products are 0.80 times as fast as in ", True, 0.8, 128),
        ("this processor has no instructions for it", False, 1.5, 128),
        ("no matrix has a width that is a multiple of 128", True, 1.5, 96),
    ],
)
def test_a_model_that_gains_nothing_is_served_in_the_usual_format(
    reason: str,
    has_int8: bool,
    speed: float,
    width: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With a warning that has the reason."""
    set_speed(monkeypatch, speed)
    monkeypatch.setattr(openvino_int8, "multiplies_int8", lambda: has_int8)
    spec = read_tiny_spec(write_bert(tmp_path, hidden_size=width, intermediate_size=2 * width + 32))
    with caplog.at_level(logging.WARNING):
        backend = loaded(spec)
    assert backend.facts.dtype in {"float32", "bfloat16"}
    assert reason in caplog.text


def test_the_speed_of_a_product_is_measured(spec: ModelSpec) -> None:
    """Of any matrix of the model that can be packed."""
    compiler = Compiler(spec, ov.Core(), "f32", threads=2)
    weight = next(weight for weight in compiler.weights if weight.shape == (256, 128))
    assert 0.01 < openvino_int8.product_speed(compiler, weight) < 100
