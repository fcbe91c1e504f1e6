"""ONNX Runtime's own behaviour: devices, memory, threads. Its results: test_onnx.py."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from tests.checkpoints.files.onnx_bytes import field, graph, model, node, tensor
from tests.compute.backends.test_onnx import BOTH, STATES, TABLE, TEXTS, lookup, write
from tests.models import batch_of

from vectord.compute.backends import onnxruntime as backend_module
from vectord.compute.backends.base import BackendOptions
from vectord.compute.backends.onnxruntime import CPU, CUDA, SHRINK, arenas, choose_provider, load

CPU_ONLY = BackendOptions(device="cpu", threads=2)


@pytest.mark.parametrize(("device", "warns"), [("cuda", True), ("cuda:1", True), ("auto", False), ("cpu", False)])
def test_missing_cuda_becomes_the_cpu(
    device: str, warns: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Embedding Inference API's provider `cuda` never fails, and logs these words."""
    monkeypatch.setattr(ort, "get_available_providers", lambda: [CPU])
    with caplog.at_level(logging.WARNING):
        assert choose_provider(device) == CPU
    assert ("CUDA requested but not available, falling back to CPU" in caplog.text) == warns


def test_memory_of_a_long_text_is_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arena shrinks only after a batch beyond the usual size, because growing again takes time."""
    asked: list[tuple[str, str]] = []

    class Options(ort.RunOptions):
        def add_run_config_entry(self, name: str, value: str) -> None:
            asked.append((name, value))
            super().add_run_config_entry(name, value)

    monkeypatch.setattr(backend_module.ort, "RunOptions", Options)
    backend = load(write(tmp_path, lookup(tensor("w", TABLE))), CPU_ONLY)
    backend.forward(batch_of(*TEXTS, outputs=("tokens",)), 0)
    assert asked == []
    long = batch_of(*[list(range(32))] * 64, outputs=("tokens",))
    assert np.isfinite(backend.forward(long, 0)["tokens"]).all()
    assert asked == [(SHRINK, "cpu:0")]


@pytest.mark.parametrize(("device", "gpu"), [("auto", "gpu:0"), ("cuda", "gpu:0"), ("cuda:1", "gpu:1")])
def test_the_gpus_own_arena_shrinks(device: str, gpu: str) -> None:
    """The runtime refuses a batch that names an arena of another session: on cuda:1 there is no gpu:0."""
    assert arenas([CUDA, CPU], device) == f"cpu:0;{gpu}"
    assert arenas([CPU], device) == "cpu:0"


def test_float16_outputs_become_float32(tmp_path: Path) -> None:
    """The file's own type does not show."""
    cast = field(1, node("Cast", ["x"], ["last_hidden_state"], field(5, field(1, "to") + field(3, 10) + field(20, 2))))
    gather = field(1, node("Gather", ["w", "input_ids"], ["x"]))
    data = model(graph(gather, cast, field(5, tensor("w", TABLE)), inputs=BOTH, outputs=STATES))
    data = data.replace(_state(1), _state(10))
    answer = load(write(tmp_path, data), CPU_ONLY).forward(batch_of(*TEXTS, outputs=("tokens",)), 0)["tokens"]
    assert answer.dtype == np.float32
    np.testing.assert_allclose(answer, TABLE[np.concatenate(TEXTS)], atol=2e-3)


def _state(kind: int) -> bytes:
    """The bytes before the type of last_hidden_state: float (1) or float16 (10)."""
    return field(1, "last_hidden_state") + b"\x12\x14\x0a\x12" + field(1, kind)
