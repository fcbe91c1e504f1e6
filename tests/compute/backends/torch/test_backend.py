"""The torch backend's full device and float32 reruns. Its vectors: ../test_conformance.py."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.models import batch_of, random_texts, read_tiny_spec, write_bert

from vectord.checkpoints.spec import ModelSpec
from vectord.compute.backends.base import BackendOptions
from vectord.compute.backends.torch import TorchBackend, load

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return read_tiny_spec(write_bert(tmp_path_factory.mktemp("bert")))


def backend_of(spec: ModelSpec, network: Any, make_exact: Callable[[], Any] | None = None) -> TorchBackend:
    """A backend that runs `network`."""
    return TorchBackend(load(spec, BackendOptions(device="cpu")).facts, network, make_exact, CPU)


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
