"""How the torch op set calls the variable-length kernel, which is written out here: the real one needs a GPU.

The rest of the op set: test_conformance.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from tests.models import pack_texts, random_texts
from torch import Tensor

from vectord.ops.base import AttentionSpec, PackedTexts
from vectord.ops.torch import TorchOps, find_varlen, pack

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


def written_out(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_ends: Tensor,
    key_ends: Tensor,
    longest_query: int,
    longest_key: int,
    *,
    scale: float | None,
    window_size: tuple[int, int],
    enable_gqa: bool,
) -> Tensor:
    """What torch.nn.attention.varlen documents: (left, right) places are seen, counted from the end of the keys."""
    assert enable_gqa
    assert (longest_query, longest_key) == tuple(int(ends.diff().max()) for ends in (query_ends, key_ends))
    left, right = (float("inf") if reach < 0 else reach for reach in window_size)
    answers = []
    pairs = zip(pairwise(query_ends.tolist()), pairwise(key_ends.tolist()), strict=True)
    for (first, last), (first_key, last_key) in pairs:
        at = torch.arange(last - first)[:, None] + (last_key - first_key) - (last - first)
        ahead = torch.arange(last_key - first_key)[None] - at
        rows = (q[first:last], k[first_key:last_key], v[first_key:last_key])
        answer = torch.nn.functional.scaled_dot_product_attention(
            *(x.transpose(0, 1) for x in rows),
            attn_mask=(ahead <= right) & (ahead >= -left),
            scale=scale,
            enable_gqa=True,
        )
        answers.append(answer.transpose(0, 1))
    return torch.cat(answers)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Makes op sets find the kernel above; says how often it ran."""
    ran: list[str] = []

    def kernel(*arguments: Any, **options: Any) -> Tensor:
        ran.append("varlen")
        return written_out(*arguments, **options)

    monkeypatch.setattr("vectord.ops.torch.find_varlen", lambda device, dtype: kernel)
    return ran


def attend(make_ops: Callable[[], TorchOps], texts: PackedTexts, spec: AttentionSpec) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    widths = (spec.heads, *[spec.kv_heads or spec.heads] * 2)
    q, k, v = (torch.randn(texts.ids.size, width * spec.head_size, generator=generator) for width in widths)
    return make_ops().attention(q, k, v, pack(texts, CPU), spec)


@pytest.mark.parametrize(("spec", "batch"), FAMILIES)
def test_kernel_is_told_what_groups_compute(spec: str, batch: str, calls: list[str]) -> None:
    """Ends, keys, windows and scale as the kernel takes them give what the length groups give."""
    texts = pack_texts(*random_texts(LENGTHS), **BATCHES[batch])
    got = attend(lambda: TorchOps(CPU, torch.float32), texts, SPECS[spec])
    assert calls == ["varlen"]
    want = attend(_without_kernel, texts, SPECS[spec])
    torch.testing.assert_close(got, want, atol=2e-6, rtol=0)


def _without_kernel() -> TorchOps:
    ops = TorchOps(CPU, torch.float32)
    ops._varlen = None
    return ops


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
def test_what_the_kernel_cannot_do_runs_by_groups(
    spec: AttentionSpec, options: dict[str, Any], calls: list[str]
) -> None:
    """It counts places from the last key, and is compiled for some head sizes."""
    attend(lambda: TorchOps(CPU, torch.float32), pack_texts(*random_texts(LENGTHS), **options), spec)
    assert not calls


def test_no_kernel_off_the_gpu() -> None:
    """The CPU, and float32 anywhere, go by groups."""
    assert find_varlen(CPU, torch.bfloat16) is None
    assert find_varlen(torch.device("cuda"), torch.float32) is None


@pytest.mark.parametrize(("capability", "found"), [((9, 0), True), ((8, 0), True), ((7, 5), False)])
def test_kernel_is_for_ampere_and_newer(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], found: bool
) -> None:
    """Older GPUs have no FlashAttention."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert (find_varlen(torch.device("cuda"), torch.float16) is not None) == found
