"""int8 of the openvino backend: linear layers use it, recipes are stored, and the loss is reported."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs
from tests.compute.backends.models import write_classifier, write_decoder, write_plain
from tests.models import batch_of, random_texts

from vectord.checkpoints.spec import ModelSpec
from vectord.compute.backends import openvino_int8
from vectord.compute.backends.base import BackendOptions, PackedTexts
from vectord.compute.backends.openvino import OpenvinoBackend, load
from vectord.compute.backends.openvino_plans import Compiler
from vectord.compute.calibration.texts import Sample
from vectord.compute.ops.int8 import Int8Ops
from vectord.compute.ops.openvino import ov
from vectord.errors import ConfigError

IDS = tuple(np.array(ids, np.int32) for ids in random_texts((9, 30, 2, 17) * 8))
SAMPLE = Sample(IDS, "own", "0" * 16, None)
OPTIONS = BackendOptions(device="cpu", dtype="int8", threads=2, sample=SAMPLE)
BATCH = batch_of(*random_texts((9, 1, 30), seed=1))


@pytest.fixture(autouse=True)
def any_speed_and_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """int8 is used at any speed, because the layers of these models are too small to gain, and if it changes the order
    of texts: with random weights, all are about equally similar."""
    monkeypatch.setattr(openvino_int8, "LEAST_SPEED", 0.0)
    monkeypatch.setattr("vectord.compute.calibration.fit.GOAL_TEN", 0.0)


def loaded(spec: ModelSpec, folder: Path | None = None) -> OpenvinoBackend:
    backend = load(spec, replace(OPTIONS, sample=replace(SAMPLE, folder=folder)))
    backend.wait()
    return backend


def test_vectors_are_close_to_float32(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Close and not equal, alone and in a batch; forward_exact is in float32; one log line reports the loss."""
    spec = write_plain(tmp_path)
    with caplog.at_level(logging.INFO):
        backend = loaded(spec)
    exact = load(spec, BackendOptions(device="cpu", dtype="float32", threads=2)).forward(BATCH, 0)["dense"]
    got = backend.forward(BATCH, 0)["dense"]
    cosines = (got * exact).sum(1) / np.linalg.norm(got, axis=1) / np.linalg.norm(exact, axis=1)
    assert 0.98 < cosines.min() < 0.999999
    np.testing.assert_allclose(backend.forward(replace(BATCH, alone=True), 0)["dense"], got, rtol=0.02, atol=0.02)
    np.testing.assert_allclose(backend.forward_exact(BATCH)["dense"], exact, atol=2e-5)
    assert backend.facts.dtype == "int8"
    assert backend.facts.int8_cosine is not None
    assert re.search(
        r"int8: mean cosine [01]\.\d{4}, least [01]\.\d{3}, same ten [01]\.\d{3}, 12 of 12 linears in int8, "
        r"\d+\.\d\d times the usual speed, calibrated on 32 own texts in \d+\.\d s; repeated at the next start, "
        r"because no calibration_folder is set",
        caplog.text,
    )


def test_the_runtime_multiplies_int8(tmp_path: Path) -> None:
    """It must recognize a pattern of nodes; otherwise it would multiply float32 and be slower."""
    compiler = Compiler(write_plain(tmp_path), ov.Core(), "f32", threads=1)
    recipe = openvino_int8.find_recipe(compiler, SAMPLE)
    assert recipe is not None
    graph = compiler.graph(Int8Ops(recipe), compiler.spec, groups=1)
    nodes = compiler.compile_graph(graph, streams=1).get_runtime_model().get_ops()
    facts = [node.get_rt_info() for node in nodes]
    products = [str(fact["runtimePrecision"].astype(str)) for fact in facts if _kind(fact) == "FullyConnected"]
    assert sum(precision in {"u8", "i8"} for precision in products) == recipe.linears


def test_sensitive_layers_keep_the_models_numbers(tmp_path: Path) -> None:
    """Places without a recipe multiply as without int8, and all others in int8."""
    compiler = Compiler(write_plain(tmp_path), ov.Core(), "f32", threads=1)
    recipe = openvino_int8.find_recipe(compiler, SAMPLE)
    assert recipe is not None
    part = structs.replace(recipe, places={number: place for number, place in recipe.places.items() if number})
    graph = compiler.graph(Int8Ops(part), compiler.spec, groups=1)
    nodes = compiler.compile_graph(graph, streams=1).get_runtime_model().get_ops()
    facts = [node.get_rt_info() for node in nodes]
    products = [str(fact["runtimePrecision"].astype(str)) for fact in facts if _kind(fact) == "FullyConnected"]
    assert {"f32"} < set(products) <= {"f32", "u8", "i8"}


def _kind(fact: ov.RTMap) -> str:
    return str(fact["layerType"].astype(str))


@pytest.mark.parametrize("write", [write_classifier, write_decoder])
def test_other_models_are_fitted_too(write: Callable[[Path], ModelSpec], tmp_path: Path) -> None:
    """By their hidden states if they have no dense vectors, and in all shapes of layers."""
    spec = write(tmp_path)
    backend = loaded(spec)
    (output,) = sorted(spec.outputs)[:1]
    answers = backend.forward(batch_of(*random_texts((9, 30)), outputs=[output]), 0)[output]
    assert np.isfinite(answers).all()
    assert backend.facts.dtype == "int8"


def test_a_stored_recipe_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start fits nothing and has equal vectors; other texts are fitted again."""
    spec = write_plain(tmp_path)
    first = loaded(spec, tmp_path / "kept").forward(BATCH, 0)["dense"]

    def refuse(*_arguments: object) -> None:
        raise AssertionError("observed again")

    monkeypatch.setattr(openvino_int8, "_observe", refuse)
    np.testing.assert_array_equal(loaded(spec, tmp_path / "kept").forward(BATCH, 0)["dense"], first)
    with pytest.raises(AssertionError, match="observed again"):
        load(spec, replace(OPTIONS, sample=Sample(IDS, "own", "1" * 16, tmp_path / "kept")))


@pytest.mark.parametrize("goal", [{"GOAL": 0.9999999}, {"GOAL_TEN": 1.1}], ids=["cosine", "order"])
def test_a_model_that_tolerates_no_int8_is_served_without(
    goal: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In the processor's usual numbers, with a warning."""
    for name, least in goal.items():
        monkeypatch.setattr(f"vectord.compute.calibration.fit.{name}", least)
    with caplog.at_level(logging.WARNING):
        backend = loaded(write_plain(tmp_path))
    assert backend.facts.dtype in {"float32", "bfloat16"}
    assert backend.facts.int8_cosine is None
    assert "no layer of this model tolerates it" in caplog.text


def test_a_model_that_gains_no_speed_is_served_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In the processor's usual numbers, with a warning. The next start knows it without another measurement."""
    monkeypatch.setattr(openvino_int8, "LEAST_SPEED", 1.05)
    times_s = iter([9.0, 1.0, 1.0, 1.25, *[2.0] * 8])  # of the model without int8 and with it, in turn
    monkeypatch.setattr(openvino_int8, "_timed_s", lambda *_: next(times_s))
    spec = write_plain(tmp_path)
    for start in ("first", "second"):
        caplog.clear()
        backend = loaded(spec, tmp_path / "kept")
        assert backend.facts.dtype in {"float32", "bfloat16"}, start
        assert backend.facts.int8_cosine is None
        assert "gains no speed from int8 on this processor (0.80 times the usual number format" in caplog.text


def test_int8_needs_calibration_texts(tmp_path: Path) -> None:
    """The caller of load must pass them."""
    with pytest.raises(ConfigError, match="dtype int8 needs calibration texts"):
        load(write_plain(tmp_path), replace(OPTIONS, sample=None))


def test_weights_have_a_bit_less_if_sums_overflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without int8 instructions the runtime sums two products in 16 bits: then 7 bits."""
    found = []
    for has_int8 in (True, False):
        monkeypatch.setattr(openvino_int8, "multiplies_int8", lambda has_int8=has_int8: has_int8)
        folder = tmp_path / str(has_int8)
        folder.mkdir()
        compiler = Compiler(write_plain(folder), ov.Core(), "f32", threads=1)
        recipe = openvino_int8.find_recipe(compiler, SAMPLE)
        assert recipe is not None
        found.append(recipe.weight_steps)
    assert found == [127, 63]


def test_batches_hold_every_text_once() -> None:
    """In order, none left over."""
    batches: list[PackedTexts] = list(openvino_int8._batches(IDS))
    np.testing.assert_array_equal(np.concatenate([batch.ids for batch in batches]), np.concatenate(IDS))
    assert all(batch.ids.size < openvino_int8.BATCH_TOKENS + 30 for batch in batches)
