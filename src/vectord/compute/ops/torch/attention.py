"""Attention over the rows of the flat layout in one Triton kernel, for what torch's variable-length kernel lacks.

That is a bias by distance, capped scores, and heads of any size. A program computes a block of rows of one head: it
reads the keys of all texts in the block, and each row sees those of its own text. Texts shorter than a block share one.
"""

from __future__ import annotations

from functools import cache

import msgspec
import numpy as np
import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from vectord.compute.ops.base import AttentionSpec, PackedTexts, Tokens
from vectord.compute.ops.torch.flat import flat_of
from vectord.compute.ops.torch.grouped import pack
from vectord.compute.ops.torch.ops import TorchOps, agrees_with_torch


class Blocks(msgspec.Struct, frozen=True):
    """The work of one program: `rows` queries, and `keys` keys at a time."""

    rows: int = 128
    keys: int = 64
    warps: int = 4
    stages: int = 2  # blocks of keys being loaded or used


def blocks_of(head_size: int) -> Blocks:
    """Return smaller blocks for large heads: they must fit into the memory of a program, 99 KiB on some cards."""
    return Blocks() if head_size <= 128 else Blocks(rows=64, keys=32)


COMPARED = (1, 150, 40)  # lengths of the texts that `agrees` compares: within a block and across two


# Not compiled again for other rows, another place of `positions` after the numbers before it, or other heads.
@triton.jit(do_not_specialize=["rows", "positions", "heads"])  # type: ignore[untyped-decorator,unused-ignore]
def _attend(  # type: ignore[no-untyped-def]
    q, k, v, out, positions, ends, bias, rows, heads, sharing, q_step, k_step, v_step, bias_step, factor, cap,
    before, after, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, BIASED: tl.constexpr, CAPPED: tl.constexpr,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    valid = row < rows
    begin = row - tl.load(positions + row, valid, 0)  # a row sees the keys from `begin` to `end`, padding none
    end = tl.load(ends + row, valid, 0)
    if CAUSAL:
        end = tl.minimum(end, row + 1)
    if WINDOWED:
        begin = tl.maximum(begin, row - before)
        end = tl.minimum(end, row + after + 1)
    column = tl.arange(0, BLOCK)
    inside = column < SIZE
    places = row[:, None].to(tl.int64) * q_step + head * SIZE + column[None, :]
    queries = tl.load(q + places, valid[:, None] & inside[None, :], 0.0)  # (ROWS, BLOCK)
    largest = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    summed = tl.zeros((ROWS, BLOCK), tl.float32)
    last = tl.max(end, 0)
    for start in range(tl.min(begin, 0), last, KEYS):
        key = start + tl.arange(0, KEYS)
        there = (key < last)[:, None] & inside[None, :]
        columns = (head // sharing) * SIZE + column[None, :]
        keys = tl.load(k + key[:, None].to(tl.int64) * k_step + columns, there, 0.0)  # (KEYS, BLOCK)
        values = tl.load(v + key[:, None].to(tl.int64) * v_step + columns, there, 0.0)
        seen = (key[None, :] >= begin[:, None]) & (key[None, :] < end[:, None])
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * factor  # (ROWS, KEYS)
        if BIASED:
            offset = key[None, :] - row[:, None] + bias_step // 2
            scores += tl.load(bias + head * bias_step + offset, seen, 0.0).to(tl.float32)
        if CAPPED:  # tanh(z) is 2 * sigmoid(2 * z) - 1
            scores = cap * (2.0 * tl.sigmoid(2.0 * scores / cap) - 1.0)
        # A share of 0 times a NaN is NaN: one among the values reaches the rows that see it by their scores instead.
        finite = tl.abs(values) < float("inf")
        scores += tl.sum(tl.where(finite, 0.0, float("nan")), 1)[None, :]
        values = tl.where(finite, values, 0.0)
        scores = tl.where(seen, scores, -float("inf"))
        larger = tl.maximum(largest, tl.max(scores, 1))
        base = tl.where(larger == -float("inf"), 0.0, larger)
        shares = tl.exp(scores - base[:, None])
        kept = tl.exp(largest - base)
        total = total * kept + tl.sum(shares, 1)
        summed = tl.dot(shares.to(values.dtype), values, summed * kept[:, None], input_precision="ieee")
        largest = larger
    summed /= tl.where(total == 0.0, 1.0, total)[:, None]
    places = row[:, None].to(tl.int64) * (heads * SIZE) + head * SIZE + column[None, :]
    tl.store(out + places, summed.to(out.dtype.element_ty), valid[:, None] & inside[None, :])


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tokens: Tokens[Tensor],
    spec: AttentionSpec,
    bias: Tensor | None,
    blocks: Blocks | None = None,
) -> Tensor:
    """Ops.attention in the flat layout; padding gets zeros. Each row of q, k and v is contiguous."""
    out = q.new_empty(len(q), spec.width)
    block = max(16, triton.next_power_of_2(spec.head_size))
    blocks = blocks or blocks_of(spec.head_size)
    _attend[triton.cdiv(len(q), blocks.rows), spec.heads](
        q,
        k,
        v,
        out,
        tokens.positions,
        tokens.layout.row_ends,
        q if bias is None else bias,
        len(q),
        spec.heads,
        spec.heads // (spec.kv_heads or spec.heads),
        q.stride(0),
        k.stride(0),
        v.stride(0),
        0 if bias is None else bias.shape[1],
        spec.factor,
        spec.score_cap or 0.0,
        spec.before or 0,
        spec.after or 0,
        CAUSAL=spec.causal,
        WINDOWED=spec.before is not None,
        BIASED=bias is not None,
        CAPPED=spec.score_cap is not None,
        SIZE=spec.head_size,
        BLOCK=block,
        ROWS=blocks.rows,
        KEYS=blocks.keys,
        num_warps=blocks.warps,
        num_stages=blocks.stages,
    )
    return out


@cache
def agrees(device: torch.device, dtype: torch.dtype, spec: AttentionSpec, biased: bool) -> bool:
    """Return whether the kernel compiles for such attention on this device and agrees with torch's own functions."""
    return agrees_with_torch("the attention kernel", lambda: _difference(device, dtype, spec, biased), dtype)


def _difference(device: torch.device, dtype: torch.dtype, spec: AttentionSpec, biased: bool) -> float:
    """As fused.largest_difference."""
    generator = torch.Generator().manual_seed(0)

    def randoms(rows: int, width: int) -> Tensor:
        return torch.randn(rows, width, generator=generator).to(device, dtype)

    texts = PackedTexts.of([np.zeros(length, np.int32) for length in COMPARED])
    heads = (spec.heads, *[spec.kv_heads or spec.heads] * 2)
    q, k, v = (randoms(sum(COMPARED), count * spec.head_size) for count in heads)
    bias = randoms(spec.heads, 2 * max(COMPARED) - 1) if biased else None
    got = attend(q, k, v, flat_of(texts, device), spec, bias).float()
    reference = TorchOps(device, torch.float32)
    want = reference.attention(
        q.float(), k.float(), v.float(), pack(texts, device), spec, None if bias is None else bias.float()
    )
    return float(((got - want).abs() / (1 + want.abs())).max())
