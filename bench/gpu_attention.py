"""Attention by torch's kernels and by vectord's, and the other steps of a layer. A section of gpu.py.

By the device's clock. The kernel of vectord is measured in several block sizes, with and without a bias by distance.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bench.gpu_ceilings import median_s
from bench.gpu_options import Options, read_options
from bench.gpu_section import Say, attempt, speaker
from vectord.compute.ops.base import AttentionSpec, PackedTexts, Tokens
from vectord.compute.ops.torch import find_varlen
from vectord.compute.ops.torch.flat import flat_of
from vectord.compute.ops.torch.varlen import attend_varlen

if TYPE_CHECKING:
    from vectord.compute.ops.torch.attention import Blocks

BERT = AttentionSpec(heads=12, head_size=64)
LONGEST = 8192  # of the bias
ROWS, WIDTH, BETWEEN, EPS = 32_768, 768, 3072, 1e-12  # one layer of bge-base

# rows, keys, warps, stages; only the first of them with a bias and for other heads, since each is compiled
CANDIDATES = ((128, 64, 4, 2), (64, 64, 4, 2), (128, 128, 8, 2), (128, 64, 4, 3), (128, 64, 8, 3), (64, 64, 4, 3))
FIRST = 3


@dataclass(frozen=True, slots=True)
class Batch:
    name: str
    lengths: Sequence[int]
    spec: AttentionSpec = BERT
    biased: bool = True  # whether the kernel is measured with a bias too


def batches(*, quick: bool) -> list[Batch]:
    """The most important first."""
    if quick:
        return [Batch("20 and 12 tokens", [20, 12], AttentionSpec(heads=1, head_size=16))]
    rng = np.random.default_rng(0)
    return [
        Batch("512 tokens", [512] * 64),
        Batch("50 tokens", [50] * 655),
        Batch("16 tokens", [16] * 2048),
        Batch("1 to 512 tokens", rng.integers(1, 513, 128).tolist()),
        Batch("5 to 39 tokens", rng.integers(5, 40, 1400).tolist()),
        Batch("8192 tokens", [8192] * 4, AttentionSpec(heads=16, head_size=64)),
        Batch("Qwen3, 512 tokens", [512] * 64, AttentionSpec(heads=16, head_size=128, kv_heads=8, causal=True), False),
        Batch("MiniLM, 50 tokens", [50] * 655, AttentionSpec(heads=12, head_size=32), False),
        Batch("MiniLM, 512 tokens", [512] * 64, AttentionSpec(heads=12, head_size=32), False),
    ]


def measure(options: Options, found: Say) -> None:
    if options.device == "cpu":  # Triton reads it when it is imported
        os.environ["TRITON_INTERPRET"] = "1"
    device = torch.device(options.device)
    dtype = torch.float32 if device.type == "cpu" else torch.float16
    for batch in batches(quick=options.quick):
        with attempt(found, f"attention, {batch.name}"):
            _attention(batch, device, dtype, options, found)
    with attempt(found, "the steps of a layer"):
        for name, run in _steps(device, dtype, 2 if options.quick else ROWS).items():
            with attempt(found, name):
                found("step", name=name, seconds=median_s(run, device))


def _attention(batch: Batch, device: torch.device, dtype: torch.dtype, options: Options, found: Say) -> None:
    from vectord.compute.ops.torch.attention import Blocks, attend  # noqa: PLC0415 - after TRITON_INTERPRET is set

    spec, tokens = batch.spec, flat_of(PackedTexts.of([np.zeros(length, np.int32) for length in batch.lengths]), device)
    q, k, v = _rows(len(tokens.ids), spec, device, dtype)
    bias = torch.randn(spec.heads, 2 * LONGEST - 1, device=device).to(dtype)
    runs: dict[str, Callable[[], Tensor]] = {}
    varlen = find_varlen(device, dtype)
    if varlen is not None:
        runs["FlashAttention"] = lambda: attend_varlen(varlen, q, k, v, tokens.layout.lengths, spec)
        runs["cuDNN"] = lambda: _cudnn(q, k, v, tokens, spec)
    count = 1 if options.quick else len(CANDIDATES) if batch.biased else FIRST
    for i, sizes in enumerate(CANDIDATES[:count]):
        blocks = Blocks(*sizes)
        runs[f"ours, {_named(blocks)}"] = lambda blocks=blocks: attend(q, k, v, tokens, spec, None, blocks)  # type: ignore[misc]
        if batch.biased and i < FIRST:
            runs[f"ours with a bias, {_named(blocks)}"] = lambda blocks=blocks: attend(
                q, k, v, tokens, spec, bias, blocks
            )  # type: ignore[misc]
    flop = sum(4 * length * length * spec.width for length in batch.lengths) / (2 if spec.causal else 1)
    want: Tensor | None = None
    for name, run in runs.items():
        with attempt(found, f"attention, {batch.name}, {name}"):
            got = run().reshape(len(q), -1).float()
            want = got if want is None else want
            difference = None if "bias" in name else float((got - want).norm() / want.norm())
            seconds = median_s(run, device)
            found("attention", batch=batch.name, kernel=name, seconds=seconds, flop_per_s=flop / seconds,
                  difference=difference)  # fmt: skip


def _named(blocks: Blocks) -> str:
    return f"{blocks.rows} x {blocks.keys}, {blocks.warps} warps, {blocks.stages} stages"


def _rows(rows: int, spec: AttentionSpec, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    """q, k and v as parts of one matrix, as a joined product returns them."""
    sizes = [spec.width, *[(spec.kv_heads or spec.heads) * spec.head_size] * 2]
    return list(torch.split(torch.randn(rows, sum(sizes), device=device).to(dtype), sizes, dim=1))


def _cudnn(q: Tensor, k: Tensor, v: Tensor, tokens: Tokens[Tensor], spec: AttentionSpec) -> Tensor:
    lengths = tokens.layout.lengths
    ends, longest = lengths.query_ends, lengths.longest_query
    heads = (x.view(len(x), -1, spec.head_size) for x in (q, k, v))
    answer: Tensor = torch.ops.aten._cudnn_attention_forward(
        *heads, None, ends, ends, longest, longest, False, 0.0, spec.causal, False, scale=spec.factor
    )[0]
    return answer


def _steps(device: torch.device, dtype: torch.dtype, rows: int) -> Mapping[str, Callable[[], object]]:
    from vectord.compute.ops.torch.fused import FusedOps  # noqa: PLC0415 - after TRITON_INTERPRET is set

    def randoms(*sizes: int) -> Tensor:
        return torch.randn(*sizes, device=device).to(dtype)

    ops = FusedOps(device, dtype)
    x, h = randoms(rows, WIDTH), randoms(rows, BETWEEN)
    into, out, joined, square = (
        randoms(*sizes) for sizes in ((BETWEEN, WIDTH), (WIDTH, BETWEEN), (3 * WIDTH, WIDTH), (WIDTH, WIDTH))
    )
    wide, bias, triple = randoms(BETWEEN), randoms(WIDTH), randoms(3 * WIDTH)
    return {
        "q, k, v": lambda: F.linear(x, joined, triple),
        "attention's output": lambda: F.linear(x, square, bias),
        "add and norm": lambda: ops.add_layer_norm(x, x, bias, bias, EPS),
        "norm of a sum": lambda: ops.layer_norm_of_sum(x, x, bias, bias, EPS),
        "layer norm alone": lambda: F.layer_norm(x, bias.shape, bias, bias, EPS),
        "up": lambda: F.linear(x, into, wide),
        "up without bias": lambda: F.linear(x, into),
        "up with gelu in its epilogue": lambda: torch._addmm_activation(wide, x, into.t(), use_gelu=True),
        "gelu": lambda: F.gelu(h),
        "gelu by tanh": lambda: F.gelu(h, approximate="tanh"),
        "down": lambda: F.linear(h, out, bias),
        "copy of the activation": h.clone,
    }


if __name__ == "__main__":
    measure(read_options(), speaker())
