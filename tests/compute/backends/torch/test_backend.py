"""The torch backend's full device and float32 reruns. Its vectors: ../test_conformance.py."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from subprocess import run
from typing import Any

import numpy as np
import pytest
import torch
from tests.models import batch_of, random_texts, read_tiny_spec, write_bert

from vectord.checkpoints.spec import ModelSpec
from vectord.compute.backends.base import BackendOptions
from vectord.compute.backends.torch import TorchBackend, load
from vectord.errors import ModelUnavailable

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return read_tiny_spec(write_bert(tmp_path_factory.mktemp("bert")))


def backend_of(spec: ModelSpec, network: Any, make_exact: Callable[[], Any] | None = None) -> TorchBackend:
    """A backend that runs `network`."""
    return TorchBackend(load(spec, BackendOptions(device="cpu")).facts, network, make_exact, CPU)


def test_bfloat16_is_close_to_float32(spec: ModelSpec) -> None:
    """16 bits cost little even on random weights: cosine above 0.999."""
    batch = batch_of(*random_texts((9, 1, 30, 2)))
    full, half = (
        load(spec, BackendOptions(device="cpu", dtype=dtype)).forward(batch, 0)["dense"]
        for dtype in ("float32", "bfloat16")
    )
    assert half.dtype == np.float32
    cosines = (full * half).sum(1) / np.linalg.norm(full, axis=1) / np.linalg.norm(half, axis=1)
    assert cosines.min() > 0.999


def test_configured_threads_are_used(spec: ModelSpec) -> None:
    """torch's default would ignore the cgroup's quota."""
    before = torch.get_num_threads()
    try:
        load(spec, BackendOptions(device="cpu", threads=1))
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_exact_is_float32(spec: ModelSpec) -> None:
    """Whatever the served dtype; the second set of weights is made once."""
    batch = batch_of(*random_texts((9, 1, 30, 2)))
    backend = load(spec, BackendOptions(device="cpu", dtype="bfloat16"))
    want = load(spec, BackendOptions(device="cpu", dtype="float32")).forward(batch, 0)["dense"]
    assert np.abs(backend.forward(batch, 0)["dense"] - want).max() > 1e-4
    for _ in range(2):
        np.testing.assert_allclose(backend.forward_exact(batch)["dense"], want, atol=1e-6)


def test_float32_weights_are_made_once(spec: ModelSpec) -> None:
    """On first use, and never if the first set is float32."""
    made: list[str] = []

    def make_exact() -> Any:
        made.append("float32")
        return lambda tokens, outputs: {}

    for exact, want in ((make_exact, ["float32"]), (None, [])):
        made.clear()
        backend = backend_of(spec, lambda tokens, outputs: {}, exact)
        assert not made
        for _ in range(2):
            backend.forward_exact(batch_of([1]))
        assert made == want


def test_a_full_device_is_a_memory_error(spec: ModelSpec) -> None:
    """The engine halves a batch on MemoryError; the tensors of the failed try are freed by then."""
    held: list[weakref.ref[torch.Tensor]] = []

    def fill_the_device(tokens: object, outputs: object) -> torch.Tensor:
        tensor = torch.zeros(4)
        held.append(weakref.ref(tensor))
        raise torch.OutOfMemoryError("CUDA out of memory")

    full, batch = backend_of(spec, fill_the_device), batch_of([1, 2, 3])
    for forward in (lambda: full.forward(batch, 0), lambda: full.forward_exact(batch)):
        with pytest.raises(MemoryError, match="no room for this batch") as caught:
            forward()
        assert held[-1]() is None, f"still held while {caught.value!r} is handled"
    assert len(held) == 2


def test_no_room_for_float32_is_a_memory_error(spec: ModelSpec) -> None:
    """The second set of weights may not fit."""
    made: list[str] = []

    def make_exact() -> Any:
        made.append("float32")
        raise torch.OutOfMemoryError("CUDA out of memory")

    backend = backend_of(spec, lambda tokens, outputs: {}, make_exact)
    for _ in range(2):  # it is tried again: memory may have become free
        with pytest.raises(MemoryError, match="in float32"):
            backend.forward_exact(batch_of([1]))
    assert len(made) == 2


def test_other_failures_pass_unchanged(spec: ModelSpec) -> None:
    """A bug in the network is not retried in halves."""

    def fail(tokens: object, outputs: object) -> torch.Tensor:
        raise RuntimeError("a kernel failed")

    with pytest.raises(RuntimeError, match="a kernel failed"):
        backend_of(spec, fail).forward(batch_of([1]), 0)


def test_missing_weights_stop_the_load(spec: ModelSpec, tmp_path: Path) -> None:
    """A folder without its checkpoint cannot be served."""
    missing = read_tiny_spec(spec.folder, weights=(tmp_path / "model.safetensors",))
    with pytest.raises(ModelUnavailable, match=r"model\.safetensors"):
        load(missing, BackendOptions(device="cpu"))


@pytest.mark.parametrize(
    "module",
    [
        "vectord.compute.networks.network",
        "vectord.compute.networks.bert",
        "vectord.compute.backends.base",
        "vectord.compute.backends.fake",
    ],
)
def test_nothing_else_needs_torch(module: str) -> None:
    """The core installation has no torch: only ops/torch/ and backends/torch/ may import it."""
    code = f"import sys, {module}; sys.exit('torch' in sys.modules or 'openvino' in sys.modules)"
    assert run([sys.executable, "-c", code], check=False).returncode == 0
