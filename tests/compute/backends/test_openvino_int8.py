"""int8 of the openvino backend: products are in int8, vectors stay close, and a model that gains no speed has none."""

from __future__ import annotations

import logging
import platform
from pathlib import Path

import numpy as np
import pytest
from _pytest.mark import ParameterSet
from bench.child import REPOSITORY
from msgspec.structs import replace
from tests.models import batch_of, random_texts, read_minilm_spec, read_tiny_spec, write_bert
from tokenizers import Tokenizer

from vectord.checkpoints.checkpoint import Weight
from vectord.checkpoints.spec import ModelSpec
from vectord.compute.backends import openvino_int8
from vectord.compute.backends.base import BackendOptions
from vectord.compute.backends.openvino import OpenvinoBackend, load
from vectord.compute.backends.openvino_plans import Compiler, InferencePrecision
from vectord.compute.ops.openvino import op, ov
from vectord.compute.ops.packed_weights import PackedWeightsOps, Packing
from vectord.compute.processor import multiplies_bfloat16, multiplies_int8

BATCH = batch_of(*random_texts((9, 1, 30), seed=1))
HAS_INT8 = bool(multiplies_int8()) and platform.machine() == "x86_64"
needs_int8 = pytest.mark.skipif(not HAS_INT8, reason="the runtime rounds inputs with int8 instructions of x86")


def needs_bfloat16(precision: InferencePrecision) -> ParameterSet:
    skip = pytest.mark.skipif(not multiplies_bfloat16(), reason="bfloat16 is emulated on this processor")
    return pytest.param(precision, marks=skip)


@pytest.fixture
def spec(tmp_path: Path) -> ModelSpec:
    """A model whose matrices have whole groups."""
    return read_tiny_spec(write_bert(tmp_path, hidden_size=128, intermediate_size=256))


def loaded(spec: ModelSpec) -> OpenvinoBackend:
    backend = load(spec, BackendOptions(device="cpu", dtype="int8", threads=2))
    assert isinstance(backend, OpenvinoBackend)
    backend.compile_narrow().result()
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
@pytest.mark.parametrize("precision", ["f32", needs_bfloat16("bf16")])
def test_vectors_of_a_trained_model_stay_close(precision: InferencePrecision) -> None:
    """Of MiniLM, whose figures docs/tuning.md has. Without rounded inputs they would be closer."""
    spec = read_minilm_spec()
    tokenizer = Tokenizer.from_file(str(spec.tokenizer))
    tokenizer.no_padding()
    passages = (REPOSITORY / "bench/calibration_texts.txt").read_text().splitlines()
    batch = batch_of(*(tokenizer.encode(text).ids for text in passages))
    compiler = Compiler(spec, ov.Core(), precision, threads=2)
    exact = compiler.compile(1, 2, precision="f32").run(batch, 0)["dense"]

    def cosines(packing: Packing) -> np.ndarray:
        compiler.packing = packing
        got = compiler.compile(1, groups=2).run(batch, 0)["dense"]
        return (got * exact).sum(1) / np.linalg.norm(got, axis=1) / np.linalg.norm(exact, axis=1)

    rounded = cosines(openvino_int8.INT8)
    assert rounded.mean() > 0.9985
    assert rounded.min() > 0.99
    assert cosines(replace(openvino_int8.INT8, rounds_inputs=False)).mean() > rounded.mean() + 1e-4


@needs_int8
@pytest.mark.parametrize("precision", ["f32", needs_bfloat16("bf16")])
def test_inputs_are_rounded_by_groups(spec: ModelSpec, precision: InferencePrecision) -> None:
    """Less than half a step of the group's largest number is lost, and the same number in the next group is kept."""
    compiler = Compiler(spec, ov.Core(), precision, threads=1)
    ops = PackedWeightsOps(openvino_int8.INT8, bfloat16=precision == "bf16")
    x = op.parameter([-1, 256], np.float32)
    matrix = ops.matrix(Weight("w", "F32", np.ones((32, 256), np.float32)))
    model = ov.Model([op.convert(ops.linear(x, matrix, None), "f32")], [x], "product")
    product = compiler.compile_model(model, streams=1, packing=openvino_int8.INT8)
    rows = np.zeros((3, 256), np.float32)
    rows[:, 0] = 127
    rows[1, 1] = rows[2, 128] = 0.4375  # with 127, exact in 10 bits, which bfloat16 rounds to 127.5
    wanted = [127, 127, 127.4375 if precision == "f32" else 127.5]
    np.testing.assert_allclose(product([rows])[0][:, 0], wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("reason", "has_int8", "speed", "width", "architecture"),
    [
        ("products are 0.80 times as fast as in bfloat16", True, 0.8, 128, "bert"),
        ("products are 1.04 times as fast as in bfloat16", True, 1.2, 64, "bert"),  # a quarter of its numbers is packed
        ("this processor has no instructions for it, so bfloat16", False, 1.5, 128, "bert"),
        ("no matrix has a width that is a multiple of 128, so bfloat16", True, 1.5, 96, "bert"),
        ("this architecture needs more exact numbers, so bfloat16", True, 1.5, 128, "embedding_gemma2"),
    ],
)
def test_a_model_that_gains_too_little_has_no_int8(
    reason: str,
    has_int8: bool,
    speed: float,
    width: int,
    architecture: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A warning has the reason."""
    set_speed(monkeypatch, speed)
    monkeypatch.setattr(openvino_int8, "multiplies_int8", lambda: has_int8)
    spec = read_tiny_spec(write_bert(tmp_path, hidden_size=width, intermediate_size=2 * width))
    compiler = Compiler(replace(spec, architecture=architecture), ov.Core(), "f32", threads=1)
    with caplog.at_level(logging.WARNING):
        assert not openvino_int8.gains_from_int8(compiler, "bfloat16")
    assert reason in caplog.text


def test_a_model_without_int8_is_served_in_the_usual_format(spec: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same vectors as by default."""
    set_speed(monkeypatch, 0.8)
    backend = loaded(spec)
    usual = load(spec, BackendOptions(device="cpu", threads=2))
    assert backend.facts.dtype == usual.facts.dtype
    np.testing.assert_array_equal(backend.forward(BATCH, 0)["dense"], usual.forward(BATCH, 0)["dense"])


def test_a_matrix_of_the_layers_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest one: larger tables of words and positions are never multiplied."""
    sizes = {"hidden_size": 128, "intermediate_size": 256, "max_position_embeddings": 4000}
    compiler = Compiler(read_tiny_spec(write_bert(tmp_path, **sizes)), ov.Core(), "f32", threads=2)
    measured: list[Weight] = []
    monkeypatch.setattr(openvino_int8, "multiplies_int8", lambda: True)
    monkeypatch.setattr(openvino_int8, "product_speed", lambda _, weight: measured.append(weight) or 1.5)
    assert openvino_int8.gains_from_int8(compiler, "float32")
    assert sorted(measured[0].shape) == [128, 256]
    monkeypatch.undo()
    assert 0.01 < openvino_int8.product_speed(compiler, measured[0]) < 100
