"""What the torch backend chooses, and what it makes of a full device. Its vectors: test_conformance.py."""

from __future__ import annotations

import logging
import sys
import weakref
from pathlib import Path
from subprocess import run
from typing import Any

import numpy as np
import pytest
import torch
from tests.models import batch_of, random_texts, read_tiny_spec, write_bert

from vectord.artifacts.spec import ModelSpec
from vectord.backends.base import BackendOptions
from vectord.backends.torch import TorchBackend, choose_device, choose_dtype, load
from vectord.errors import ConfigError, ModelUnavailable

CPU = torch.device("cpu")
CUDA = torch.device("cuda")


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return read_tiny_spec(write_bert(tmp_path_factory.mktemp("bert")))


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


def backend_of(
    spec: ModelSpec, network: Any, made: list[torch.dtype] | None = None, dtype: torch.dtype = torch.float32
) -> TorchBackend:
    """One that runs `network`. made: gets the dtype of each network that is made."""

    def make_network(dtype: torch.dtype) -> Any:
        if made is not None:
            made.append(dtype)
        return network

    return TorchBackend(load(spec, BackendOptions(device="cpu")).facts, make_network, CPU, dtype)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("name", ["cuda", "cuda:1", "mps"])
def test_missing_gpu_becomes_the_cpu(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """A machine without the GPU that was asked for still serves, and says so in the log."""
    with caplog.at_level(logging.WARNING, "vectord.backends.torch"):
        assert choose_device(name) == CPU
    assert caplog.messages == [f"device {name} is not available, using the CPU instead"]


@pytest.mark.usefixtures("no_gpu")
def test_auto_without_gpu_is_the_cpu(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody asked for a GPU, so nobody is warned."""
    assert choose_device("auto") == CPU
    assert not caplog.messages


def test_auto_prefers_cuda_then_mps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest kind of device that is there is taken; a number that is there is kept."""
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("auto") == CUDA
    assert choose_device("cuda:1") == torch.device("cuda:1")
    assert choose_device("cuda:2") == CPU
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert choose_device("auto") == torch.device("mps")


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:9999", "", "CUDA", "cpu\n"])
def test_unknown_device_stops_the_start(name: str) -> None:
    """A name that is no device is a mistake in the configuration, not a missing GPU."""
    with pytest.raises(ConfigError, match="device must be auto, cpu, cuda, cuda:N or mps"):
        choose_device(name)


def test_dtype_auto_fits_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 bits on CUDA, bfloat16 where it computes in that; float32 elsewhere."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    assert choose_dtype("auto", CUDA) == torch.bfloat16
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: False)
    assert choose_dtype("auto", CUDA) == torch.float16
    assert choose_dtype("auto", CPU) == torch.float32
    assert choose_dtype("auto", torch.device("mps")) == torch.float32


def test_dtype_can_be_insisted_on() -> None:
    """What is asked for is what is computed in, but for float16 on the CPU, which is emulated there."""
    assert choose_dtype("bfloat16", CPU) == torch.bfloat16
    assert choose_dtype("float32", CUDA) == torch.float32
    assert choose_dtype("float16", CUDA) == torch.float16
    assert choose_dtype("float16", CPU) == torch.float32
    with pytest.raises(ConfigError, match="dtype must be auto, float32, bfloat16, float16"):
        choose_dtype("int8", CPU)


def test_bfloat16_is_close_to_float32(spec: ModelSpec) -> None:
    """Sixteen bits cost little even on random weights: cosine above 0.999."""
    batch = batch_of(*random_texts((9, 1, 30, 2)))
    full, half = (
        load(spec, BackendOptions(device="cpu", dtype=dtype)).forward(batch, 0)["dense"]
        for dtype in ("float32", "bfloat16")
    )
    assert half.dtype == np.float32
    cosines = (full * half).sum(1) / np.linalg.norm(full, axis=1) / np.linalg.norm(half, axis=1)
    assert cosines.min() > 0.999


def test_threads_of_the_options_are_used(spec: ModelSpec) -> None:
    """torch's own default would ignore the cgroup's quota."""
    before = torch.get_num_threads()
    try:
        load(spec, BackendOptions(device="cpu", threads=1))
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_exact_is_float32(spec: ModelSpec) -> None:
    """Whatever the model is served in; the second set of weights is made once."""
    batch = batch_of(*random_texts((9, 1, 30, 2)))
    backend = load(spec, BackendOptions(device="cpu", dtype="bfloat16"))
    want = load(spec, BackendOptions(device="cpu", dtype="float32")).forward(batch, 0)["dense"]
    assert np.abs(backend.forward(batch, 0)["dense"] - want).max() > 1e-4
    for _ in range(2):
        np.testing.assert_allclose(backend.forward_exact(batch)["dense"], want, atol=1e-6)


def test_weights_are_made_once_for_each_dtype(spec: ModelSpec) -> None:
    """The set in float32 when somebody first needs it, and never where the first is that already."""
    for dtype, want in ((torch.bfloat16, [torch.bfloat16, torch.float32]), (torch.float32, [torch.float32])):
        made: list[torch.dtype] = []
        backend = backend_of(spec, lambda tokens, outputs: {}, made=made, dtype=dtype)
        assert made == [dtype]
        for _ in range(2):
            backend.forward_exact(batch_of([1]))
        assert made == want


def test_full_device_is_a_memory_error(spec: ModelSpec) -> None:
    """The engine halves a batch on MemoryError; the tensors of the failed try are gone by then."""
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
    """The second set of weights may be what does not fit."""
    made: list[torch.dtype] = []

    def make_network(dtype: torch.dtype) -> Any:
        made.append(dtype)
        if dtype == torch.float32:
            raise torch.OutOfMemoryError("CUDA out of memory")

    facts = load(spec, BackendOptions(device="cpu")).facts
    backend = TorchBackend(facts, make_network, CPU, torch.bfloat16)
    for _ in range(2):  # it is tried again: room may have come free
        with pytest.raises(MemoryError, match="in float32"):
            backend.forward_exact(batch_of([1]))
    assert made == [torch.bfloat16, torch.float32, torch.float32]


def test_other_failures_are_left_as_they_are(spec: ModelSpec) -> None:
    """Only lack of memory is lack of memory: a bug in the network is not retried in halves."""

    def fail(tokens: object, outputs: object) -> torch.Tensor:
        raise RuntimeError("a kernel failed")

    with pytest.raises(RuntimeError, match="a kernel failed"):
        backend_of(spec, fail).forward(batch_of([1]), 0)


def test_missing_weights_stop_the_load(spec: ModelSpec, tmp_path: Path) -> None:
    """A folder without its checkpoint is a model that cannot be served."""
    missing = read_tiny_spec(spec.folder, weights=(tmp_path / "model.safetensors",))
    with pytest.raises(ModelUnavailable, match=r"model\.safetensors"):
        load(missing, BackendOptions(device="cpu"))


@pytest.mark.parametrize(
    "module", ["vectord.networks.network", "vectord.networks.bert", "vectord.backends.base", "vectord.backends.fake"]
)
def test_nothing_else_needs_torch(module: str) -> None:
    """The core install has no torch: only ops/torch.py and backends/torch.py may import it."""
    code = f"import sys, {module}; sys.exit('torch' in sys.modules or 'openvino' in sys.modules)"
    assert run([sys.executable, "-c", code], check=False).returncode == 0
