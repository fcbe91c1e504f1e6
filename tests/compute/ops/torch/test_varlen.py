"""How the torch op set calls the variable-length kernel. Other ops: tests/compute/ops/test_conformance.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from tests.compute.ops.torch.kernel import written_out
from tests.models import pack_texts, random_texts
from torch import Tensor

from vectord.compute.ops.base import AttentionSpec, PackedTexts
from vectord.compute.ops.torch import TorchOps, find_varlen, pack, varlen

CPU = torch.device("cpu")
PLAIN = AttentionSpec(heads=4, head_size=8)
SPECS = {
    "plain": PLAIN,
    "scale": replace(PLAIN, scale=0.2),
    "shared keys": replace(PLAIN, kv_heads=2),
    "causal": replace(PLAIN, causal=True),
    "window": replace(PLAIN, window=3),
    "causal, window, shared keys": replace(PLAIN, kv_heads=2, causal=True, window=3),
}
LENGTHS = (9, 1, 30, 2, 17)
BATCHES: dict[str, dict[str, Any]] = {
    "texts": {},
    "parents": {"parents": np.array([-1, 0, -1, 0, 2], np.int32)},
    "keys": {"keys": np.array([9, 1, 12, 1, 17], np.int32)},
}
FAMILIES = [
    *((name, "texts") for name in SPECS),
    *((name, "parents") for name in ("causal", "causal, window, shared keys")),
    ("plain", "keys"),
]


class Kernel:
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *arguments: Any, **options: Any) -> Tensor:
        self.calls += 1
        return written_out(*arguments, **options)


def attend(ops: TorchOps, texts: PackedTexts, spec: AttentionSpec) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    widths = (spec.heads, *[spec.kv_heads or spec.heads] * 2)
    q, k, v = (torch.randn(texts.ids.size, width * spec.head_size, generator=generator) for width in widths)
    return ops.attention(q, k, v, pack(texts, CPU), spec)


@pytest.mark.parametrize(("spec", "batch"), FAMILIES)
def test_the_kernel_equals_the_groups(spec: str, batch: str) -> None:
    """Ends, keys, windows and scale in the kernel's form give the results of length groups."""
    texts = pack_texts(*random_texts(LENGTHS), **BATCHES[batch])
    kernel = Kernel()
    got = attend(TorchOps(CPU, torch.float32, kernel), texts, SPECS[spec])
    assert kernel.calls == 1
    want = attend(TorchOps(CPU, torch.float32), texts, SPECS[spec])
    torch.testing.assert_close(got, want, atol=2e-6, rtol=0)


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        (replace(PLAIN, causal=True), BATCHES["keys"]),
        (replace(PLAIN, window=3), BATCHES["keys"]),
        (AttentionSpec(heads=2, head_size=20), {}),
        (AttentionSpec(heads=1, head_size=264), {}),
    ],
    ids=["causal, fewer keys", "window, fewer keys", "a size between", "a large head"],
)
def test_unsupported_attention_runs_by_groups(spec: AttentionSpec, options: dict[str, Any]) -> None:
    """The kernel counts places from the last key, and supports some head sizes only."""
    kernel = Kernel()
    attend(TorchOps(CPU, torch.float32, kernel), pack_texts(*random_texts(LENGTHS), **options), spec)
    assert not kernel.calls


def test_no_kernel_without_a_gpu() -> None:
    """The CPU, and float32 anywhere, use groups."""
    assert find_varlen(CPU, torch.bfloat16) is None
    assert find_varlen(torch.device("cuda"), torch.float32) is None


@pytest.mark.parametrize(("capability", "found"), [((9, 0), True), ((8, 0), True), ((7, 5), False)])
def test_the_kernel_is_for_ampere_and_newer(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], found: bool
) -> None:
    """Older GPUs have no FlashAttention."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert (find_varlen(torch.device("cuda"), torch.float16) is not None) == found


def test_the_operator_is_called_without_the_wrapper(monkeypatch: pytest.MonkeyPatch) -> None:
    """With arguments that its schema has, so that the processor refuses only to run it."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", None)
    found = find_varlen(torch.device("cuda"), torch.float16)
    assert found is not None
    rows = torch.zeros(3, 2, 8, dtype=torch.float16)
    ends = torch.tensor([0, 3], dtype=torch.int32)
    with pytest.raises(NotImplementedError, match="Could not run 'aten::_flash_attention_forward'"):
        found(rows, rows, rows, ends, ends, 3, 3, scale=0.5, window_size=(-1, 0))


def test_an_unusable_flash_attention_3_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """On Hopper, where its package is installed; the kernels of torch are used then."""
    (tmp_path / "flash_attn_interface.py").write_text("raise ImportError('built for another torch')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    varlen._use_flash_attention_3.cache_clear()
    assert find_varlen(torch.device("cuda"), torch.float16) is not None
    varlen._use_flash_attention_3.cache_clear()
    assert "FlashAttention 3 is installed but cannot be used: built for another torch" in caplog.text
