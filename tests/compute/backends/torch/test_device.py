"""The torch backend's choice of device, dtype and share of memory."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vectord.compute.backends.torch import choose_device, choose_dtype
from vectord.compute.backends.torch.device import MIB, cap_memory, room_bytes, set_products
from vectord.errors import ConfigError
from vectord.schema import DeviceMemory

CPU = torch.device("cpu")
CUDA = torch.device("cuda")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("name", ["cuda", "cuda:1", "mps"])
def test_missing_gpu_becomes_the_cpu(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """It serves, and logs a warning."""
    with caplog.at_level(logging.WARNING, "vectord.compute.backends.torch"):
        assert choose_device(name) == CPU
    assert caplog.messages == [f"{name.upper()} requested but not available, falling back to CPU"]


@pytest.mark.usefixtures("no_gpu")
def test_an_old_driver_leaves_the_cpu(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The driver counts its GPUs, although this torch cannot use them."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == choose_device("cuda:1") == CPU
    assert caplog.messages[0].startswith("the driver of 2 GPUs is too old for CUDA")


def test_auto_prefers_cuda_then_mps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest available kind; an existing number is kept."""
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto") == CUDA
    assert choose_device("cuda:1") == torch.device("cuda:1")
    assert choose_device("cuda:2") == CPU
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert choose_device("auto") == torch.device("mps")


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cuda:9999", ""])
def test_an_unknown_device_stops_the_start(name: str) -> None:
    """An unknown name is a configuration error, not a missing GPU."""
    with pytest.raises(ConfigError, match="device must be auto, cpu, cuda, cuda:N or mps"):
        choose_device(name)


TURING, AMPERE = (7, 5), (8, 6)  # compute capabilities
NO_BFLOAT16 = "this GPU does not compute in bfloat16; using float16"
OVERFLOWS = "gemma3_text overflows in float16; using "


@pytest.mark.parametrize(
    ("gpu", "name", "device", "architecture", "dtype", "warning"),
    [
        (AMPERE, "auto", CUDA, "", torch.bfloat16, None),
        (AMPERE, "auto", CPU, "", torch.float32, None),
        (AMPERE, "auto", torch.device("mps"), "", torch.float32, None),
        (AMPERE, "auto", CUDA, "bert", torch.float16, None),  # closer to float32 than bfloat16
        (AMPERE, "bfloat16", CUDA, "bert", torch.bfloat16, None),
        (AMPERE, "auto", CPU, "bert", torch.float32, None),
        (AMPERE, "auto", CUDA, "embedding_gemma2", torch.float32, None),  # its scores are large
        (AMPERE, "bfloat16", CUDA, "embedding_gemma2", torch.bfloat16, None),
        (TURING, "auto", CUDA, "", torch.float16, None),
        (TURING, "bfloat16", CUDA, "", torch.float16, NO_BFLOAT16),
        (AMPERE, "bfloat16", CPU, "", torch.bfloat16, None),
        (AMPERE, "float32", CUDA, "", torch.float32, None),
        (AMPERE, "float16", CUDA, "", torch.float16, None),
        (AMPERE, "float16", CPU, "", torch.float32, "this processor does not compute in float16; using float32"),
        (AMPERE, "auto", CUDA, "gemma3_text", torch.bfloat16, None),  # it overflows in float16
        (AMPERE, "float16", CUDA, "gemma3_text", torch.bfloat16, f"{OVERFLOWS}bfloat16"),
        (TURING, "auto", CUDA, "gemma3_text", torch.float32, None),
        (TURING, "float16", CUDA, "gemma3_text", torch.float32, f"{OVERFLOWS}float32"),
    ],
)
def test_the_dtype_fits_the_device_and_the_model(
    gpu: tuple[int, int],
    name: str,
    device: torch.device,
    architecture: str,
    dtype: torch.dtype,
    warning: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """auto is 16 bits on CUDA and float32 elsewhere. A requested dtype that is replaced logs a warning."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: gpu)
    assert choose_dtype(name, device, architecture) == dtype
    assert caplog.messages == ([] if warning is None else [warning])


def test_an_unknown_dtype_stops_the_start() -> None:
    """The error lists the known ones."""
    with pytest.raises(ConfigError, match="dtype must be auto, float32, bfloat16, float16"):
        choose_dtype("int8", CPU)


@pytest.mark.parametrize(("tf32", "precision"), [(True, "high"), (False, "highest")])
def test_float32_is_rounded_only_by_choice(tf32: bool, precision: str) -> None:
    """To TF32; and sums of 16 bits are never in 16 bits."""
    before = torch.get_float32_matmul_precision()
    try:
        set_products(tf32=tf32)
        assert torch.get_float32_matmul_precision() == precision
        assert not torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
        assert not torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(("cap_mib", "share"), [(1024, 0.25), (8192, 1.0)])
def test_the_limit_is_a_share_of_its_own_card(cap_mib: int, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example of the second one's 4 GiB; a limit above that is none."""
    asked: list[tuple[float, int]] = []
    card = SimpleNamespace(total_memory=4096 * MIB)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *given: asked.append(given))
    cap_memory(torch.device("cuda:1"), cap_mib)
    assert asked == [(share, 1)]


@given(sizes=st.lists(st.integers(0, 2**40), min_size=4, max_size=4), cap_mib=st.none() | st.integers(64, 2**20))
def test_room_is_the_memory_that_may_still_be_taken(sizes: list[int], cap_mib: int | None) -> None:
    """At most the free memory plus this process's unused memory, and within the limit."""
    free, held, used, rest = sizes
    memory = DeviceMemory(allocated=min(held, used), reserved=held, free=free, total=free + held + rest)
    room = room_bytes(memory, cap_mib)
    assert 0 <= room <= free + held - memory.allocated
    if cap_mib is not None and held <= cap_mib * MIB:
        assert memory.allocated + room <= cap_mib * MIB
