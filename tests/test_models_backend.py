"""models/backend.py: who computes for a model, and with how much of the machine."""

from __future__ import annotations

import importlib
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.artifacts.files.onnx_bytes import field, graph, model
from tests.opening import FAKE, minilm_folder, opened

from vectord.config import DEFAULT_MODEL, Config, DeviceConfig, ModelConfig
from vectord.errors import ConfigError
from vectord.models import backend, open_models


@pytest.mark.parametrize("name", backend.backend_names())
def test_every_backend_of_the_folder_can_load(name: str) -> None:
    """The folder is the registry: each name is a module with a `load`."""
    assert callable(importlib.import_module(f"vectord.backends.{name}").load)


@pytest.mark.parametrize(
    ("device", "cuda", "name"),
    [
        ("auto", False, "openvino"),
        ("auto", True, "torch"),
        ("cpu", True, "openvino"),
        ("cuda", True, "torch"),
        ("cuda:1", True, "torch"),
        ("mps", False, "torch"),
    ],
)
def test_the_device_chooses_the_backend(device: str, cuda: bool, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """auto is openvino on the processor and torch on a GPU."""
    monkeypatch.setattr(backend, "_has_cuda", lambda: cuda)
    (model,) = opened(DEFAULT_MODEL)
    assert backend.backend_of(model.spec, DeviceConfig(device=device)) == name


@pytest.mark.parametrize(
    ("facts", "name"),
    {
        "own class": ({"handler": "my.House"}, "handler"),
        "a graph": ({"weights": (Path("model.onnx"),)}, "onnx"),
        "undescribed": ({"architecture": "albert"}, "transformers"),
    }.values(),
    ids=["own class", "a graph", "undescribed"],
)
def test_the_model_chooses_the_backend_before_the_device_does(facts: dict[str, Any], name: str) -> None:
    """What only one backend can run goes there; a backend that is named outranks that."""
    (model,) = opened(DEFAULT_MODEL)
    spec = replace(model.spec, **facts)
    assert backend.backend_of(spec, DeviceConfig()) == name
    assert backend.backend_of(spec, FAKE) == "fake"


def test_a_backend_whose_library_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core has no torch; the error says what to install."""
    monkeypatch.setattr(backend, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'vectord\[torch\]'"):
        open_models(Config(device=DeviceConfig(device="cuda")))


@pytest.mark.parametrize(("cuda", "device"), [(True, "cuda"), (False, "cpu")], ids=["with CUDA", "without"])
def test_cuda_or_cpu_never_fails(
    cuda: bool, device: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Semantic Explorer's provider `cuda` falls back to the processor and says so."""
    monkeypatch.setattr(backend, "_has_cuda", lambda: cuda)
    with caplog.at_level(logging.WARNING, "vectord"):
        assert backend.settle_device(DeviceConfig(device="cuda-or-cpu")).device == device
    assert [record.levelname for record in caplog.records] == ([] if cuda else ["WARNING"])


def test_onnxruntime_looks_for_cuda_itself() -> None:
    """It needs no torch to find it, and falls back by itself."""
    asked = DeviceConfig(device="cuda-or-cpu", backend="onnxruntime")
    assert backend.settle_device(asked).device == "cuda"


def test_int8_is_refused_where_there_is_none() -> None:
    """The error names the backends that have it."""
    with pytest.raises(ConfigError, match=r"dtype int8: the fake backend has none; .*onnxruntime, openvino, torch"):
        open_models(Config(device=replace(FAKE, dtype="int8")))


def test_a_graph_beside_other_weights_is_a_model_of_its_own(tmp_path: Path) -> None:
    """ONNX Runtime runs the file whose name says the dtype; its vectors are another space's."""
    folder = minilm_folder(tmp_path / "minilm")
    (folder / "onnx").mkdir()
    data = model(graph(inputs={}, outputs={"last_hidden_state": ["n", "l", 384]}))
    for name in ("model.onnx", "model_int8.onnx"):
        (folder / "onnx" / name).write_bytes(data + field(6, name))
    (own,) = opened(str(folder))
    found = []
    for dtype in ("auto", "int8"):
        device = DeviceConfig(backend="onnxruntime", dtype=dtype)
        (source,) = open_models(Config(model=ModelConfig(models=(str(folder),)), device=device))
        found.append(source.spec)
    assert [spec.weights[0].name for spec in found] == ["model.onnx", "model_int8.onnx"]
    assert len({own.spec.fingerprint, *(spec.fingerprint for spec in found)}) == 3


@pytest.mark.parametrize(("asked", "used"), [(None, None), (1, 1), (4, 4), (5, 4)])
def test_threads_are_no_more_than_can_run(
    asked: int | None, used: int | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """ORT_NUM_THREADS=4 in somebody's compose file must not slow a container of two cores sixfold."""
    monkeypatch.setattr(backend, "thread_budget", lambda: 4)
    with caplog.at_level(logging.WARNING, "vectord"):
        assert backend.settle_device(DeviceConfig(num_threads=asked)).num_threads == used
    assert len(caplog.records) == (asked != used)
