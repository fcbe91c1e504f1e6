"""int8 of the openvino backend: products are in int8, vectors stay close, and a model that cannot have it has none."""

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
from vectord.compute.backends import openvino
from vectord.compute.backends.base import BackendOptions
from vectord.compute.backends.openvino import load
from vectord.compute.backends.openvino_plans import Compiler, InferencePrecision
from vectord.compute.ops.openvino import op, ov
from vectord.compute.ops.packed_weights import PACKINGS, PackedWeightsOps, Packing
from vectord.compute.processor import multiplies_bfloat16, multiplies_int8

INT8 = PACKINGS["int8"]
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


def test_vectors_are_close_to_float32(spec: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Close and not equal, alone and in a batch; forward_exact is in float32."""
    monkeypatch.setattr(openvino, "multiplies_int8", lambda: True)
    backend = load(spec, BackendOptions(device="cpu", dtype="int8", threads=2))
    backend.compile_narrow().result()
    exact = load(spec, BackendOptions(device="cpu", dtype="float32", threads=2)).forward(BATCH, 0)["dense"]
    got = backend.forward(BATCH, 0)["dense"]
    cosines = (got * exact).sum(1) / np.linalg.norm(got, axis=1) / np.linalg.norm(exact, axis=1)
    assert 0.99 < cosines.min() < 0.999999
    np.testing.assert_allclose(backend.forward(replace(BATCH, alone=True), 0)["dense"], got, rtol=0.02, atol=0.02)
    np.testing.assert_allclose(backend.forward_exact(BATCH)["dense"], exact, atol=2e-5)
    assert backend.facts.dtype == "int8"


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

    rounded = cosines(INT8)
    assert rounded.mean() > 0.9985
    assert rounded.min() > 0.99
    assert cosines(replace(INT8, rounds_inputs=False)).mean() > rounded.mean() + 1e-4


@needs_int8
@pytest.mark.parametrize("precision", ["f32", needs_bfloat16("bf16")])
def test_inputs_are_rounded_by_groups(spec: ModelSpec, precision: InferencePrecision) -> None:
    """Less than half a step of the group's largest number is lost, and the same number in the next group is kept."""
    compiler = Compiler(spec, ov.Core(), precision, threads=1)
    ops = PackedWeightsOps(INT8, bfloat16=precision == "bf16")
    x = op.parameter([-1, 256], np.float32)
    matrix = ops.matrix(Weight("w", "F32", np.ones((32, 256), np.float32)))
    model = ov.Model([op.convert(ops.linear(x, matrix, None), "f32")], [x], "product")
    product = compiler.compile_model(model, streams=1, packing=INT8)
    rows = np.zeros((3, 256), np.float32)
    rows[:, 0] = 127
    rows[1, 1] = rows[2, 128] = 0.4375  # with 127, exact in 10 bits, which bfloat16 rounds to 127.5
    wanted = [127, 127, 127.4375 if precision == "f32" else 127.5]
    np.testing.assert_allclose(product([rows])[0][:, 0], wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("reason", "has_int8", "width", "by_default"),
    [
        ("this processor has no instructions for it", False, 128, set()),
        ("no matrix has a width that is a multiple of 128", True, 96, set()),
        ("this architecture needs more exact numbers", True, 128, {"bert"}),
    ],
)
def test_a_model_without_int8_is_served_in_the_usual_format(
    reason: str,
    has_int8: bool,
    width: int,
    by_default: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A warning has the reason."""
    monkeypatch.setattr(openvino, "multiplies_int8", lambda: has_int8)
    spec = read_tiny_spec(write_bert(tmp_path, hidden_size=width, intermediate_size=2 * width))
    monkeypatch.setattr(openvino, "FLOAT32_BY_DEFAULT", by_default)
    with caplog.at_level(logging.WARNING):
        backend = load(spec, BackendOptions(device="cpu", dtype="int8", threads=2))
    assert f"int8: {reason}, so {backend.facts.dtype} is used" in caplog.text
    usual = load(spec, BackendOptions(device="cpu", threads=2))
    assert backend.facts.dtype == usual.facts.dtype
    np.testing.assert_array_equal(backend.forward(BATCH, 0)["dense"], usual.forward(BATCH, 0)["dense"])
