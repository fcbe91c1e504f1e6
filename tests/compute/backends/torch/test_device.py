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


@pytest.fixture
def turing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))


@pytest.fixture
def ampere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))


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


@pytest.mark.usefixtures("ampere")
def test_dtype_auto_fits_the_device() -> None:
    """16 bits on CUDA, float32 elsewhere."""
    assert choose_dtype("auto", CUDA) == torch.bfloat16
    assert choose_dtype("auto", CPU) == torch.float32
    assert choose_dtype("auto", torch.device("mps")) == torch.float32


@pytest.mark.usefixtures("ampere")
def test_encoders_of_small_activations_compute_in_float16() -> None:
    """It is closer to float32 than bfloat16, which is used on request; the CPU keeps float32."""
    assert choose_dtype("auto", CUDA, "bert") == torch.float16
    assert choose_dtype("bfloat16", CUDA, "bert") == torch.bfloat16
    assert choose_dtype("auto", CPU, "bert") == torch.float32
    assert choose_dtype("auto", CUDA, "jina_bert_v2") == torch.bfloat16


@pytest.mark.usefixtures("ampere")
def test_a_model_of_large_scores_computes_in_float32_unless_bfloat16_is_requested() -> None:
    """EmbeddingGemma 2's attention scores are not divided by the root of the heads' width."""
    assert choose_dtype("auto", CUDA, "embedding_gemma2") == torch.float32
    assert choose_dtype("bfloat16", CUDA, "embedding_gemma2") == torch.bfloat16


@pytest.mark.usefixtures("turing")
def test_an_older_gpu_computes_in_float16(caplog: pytest.LogCaptureFixture) -> None:
    """It only emulates bfloat16; a request for that logs a warning."""
    assert choose_dtype("auto", CUDA) == torch.float16
    assert not caplog.messages
    assert choose_dtype("bfloat16", CUDA) == torch.float16
    assert caplog.messages == ["this GPU does not compute in bfloat16; using float16"]


@pytest.mark.usefixtures("ampere")
def test_a_requested_dtype_is_used() -> None:
    """Except for float16 on the CPU, which would be emulated."""
    assert choose_dtype("bfloat16", CPU) == torch.bfloat16
    assert choose_dtype("bfloat16", CUDA) == torch.bfloat16
    assert choose_dtype("float32", CUDA) == torch.float32
    assert choose_dtype("float16", CUDA) == torch.float16
    assert choose_dtype("float16", CPU) == torch.float32
    with pytest.raises(ConfigError, match="dtype must be auto, float32, bfloat16, float16"):
        choose_dtype("int8", CPU)


@pytest.mark.parametrize("name", ["auto", "float16"])
@pytest.mark.parametrize(("gpu", "dtype"), [("ampere", torch.bfloat16), ("turing", torch.float32)])
def test_gemma_never_computes_in_float16(
    gpu: str, dtype: torch.dtype, name: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    """It overflows: bfloat16 if the GPU supports it, else float32. A request for float16 logs a warning."""
    request.getfixturevalue(gpu)
    assert choose_dtype(name, CUDA, "gemma3_text") == dtype
    warned = [f"gemma3_text overflows in float16; using {str(dtype).removeprefix('torch.')}"]
    assert caplog.messages == (warned if name == "float16" else [])


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
