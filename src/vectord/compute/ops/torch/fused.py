"""FusedOps: the torch op set with Triton kernels that read and write device memory once where torch does several times.

For CUDA. Torch's own functions compute the same and are the reference: backends/torch/ calls `largest_difference` on
the device before it uses FusedOps. Each kernel computes in float32 and rounds its result once. Triton compiles the
kernels on first use, with a C compiler. With TRITON_INTERPRET=1 they run on the processor, as in the tests.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from vectord.compute.ops.base import Activation, AttentionSpec, Tokens
from vectord.compute.ops.torch import attention
from vectord.compute.ops.torch.flat import NotFlat
from vectord.compute.ops.torch.ops import TorchOps

COLUMNS_AT_ONCE = 1024  # of a gated activation, by one program
NUMBERS_AT_ONCE = 2048  # of a rotation: the heads that one program turns
GATES: dict[Activation, int] = {"silu": 0, "gelu": 1, "gelu_tanh": 2}  # the activations of `_gate`


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _add_norm(  # type: ignore[no-untyped-def]
    x, y, weight, bias, total, normed, width, x_step, y_step, eps,
    RMS: tl.constexpr, SUMMED: tl.constexpr, BIASED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    numbers = tl.load(x + row * x_step + columns, inside, 0.0).to(tl.float32)
    numbers += tl.load(y + row * y_step + columns, inside, 0.0).to(tl.float32)
    rounded = numbers.to(total.dtype.element_ty)  # the norm is that of the sum as later layers read it
    if SUMMED:
        tl.store(total + row * width + columns, rounded, inside)
    numbers = rounded.to(tl.float32)
    if not RMS:
        numbers = tl.where(inside, numbers - tl.sum(numbers) / width, 0.0)
    numbers *= tl.rsqrt(tl.sum(numbers * numbers) / width + eps)
    numbers *= tl.load(weight + columns, inside, 0.0).to(tl.float32)
    if BIASED:
        numbers += tl.load(bias + columns, inside, 0.0).to(tl.float32)
    tl.store(normed + row * width + columns, numbers.to(normed.dtype.element_ty), inside)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _gate(gate, up, out, width, gate_step, up_step, KIND: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    x = tl.load(gate + row * gate_step + columns, inside, 0.0).to(tl.float32)
    if KIND == 0:
        x = x * tl.sigmoid(x)
    elif KIND == 1:
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    else:  # tanh(z) is 2 * sigmoid(2 * z) - 1
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    x *= tl.load(up + row * up_step + columns, inside, 0.0).to(tl.float32)
    tl.store(out + row * width + columns, x.to(out.dtype.element_ty), inside)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _rotate(  # type: ignore[no-untyped-def]
    x, weight, cos, sin, out, heads, x_step, eps,
    NORMED: tl.constexpr, HALF: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    valid = column < HALF
    inside = (head < heads) & valid
    start = x + row * x_step + head * (2 * HALF) + column
    first = tl.load(start, inside, 0.0).to(tl.float32)  # (HEADS, BLOCK)
    second = tl.load(start + HALF, inside, 0.0).to(tl.float32)
    if NORMED:
        squares = tl.sum(first * first + second * second, axis=1)[:, None]
        factor = tl.rsqrt(squares / (2 * HALF) + eps)
        first *= factor * tl.load(weight + column, valid, 0.0).to(tl.float32)
        second *= factor * tl.load(weight + HALF + column, valid, 0.0).to(tl.float32)
    c = tl.load(cos + row * HALF + column, valid, 0.0).to(tl.float32)
    s = tl.load(sin + row * HALF + column, valid, 0.0).to(tl.float32)
    place = out + row * (heads * 2 * HALF) + head * (2 * HALF) + column
    tl.store(place, (first * c - second * s).to(out.dtype.element_ty), inside)
    tl.store(place + HALF, (second * c + first * s).to(out.dtype.element_ty), inside)


class FusedOps(TorchOps):
    """The ops of ops/base.py that are sequences of others, in one kernel each."""

    def add_layer_norm(
        self, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor]:
        return _summed(x, y, weight, bias, eps, rms=False)

    def layer_norm_of_sum(self, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        return _summed(x, y, weight, bias, eps, rms=False, summed=False)[1]

    def add_rms_norm(self, x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return _summed(x, y, weight, None, eps, rms=True)

    def gated(self, gate: Tensor, up: Tensor, kind: Activation) -> Tensor:
        if kind not in GATES:
            return super().gated(gate, up, kind)
        rows, width = gate.shape
        out = gate.new_empty(rows, width)
        block = min(COLUMNS_AT_ONCE, triton.next_power_of_2(width))
        grid = (rows, triton.cdiv(width, block))
        _gate[grid](gate, up, out, width, gate.stride(0), up.stride(0), KIND=GATES[kind], BLOCK=block)
        return out

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor, head_size: int) -> Tensor:
        return _turned(x, None, 0.0, cos, sin, head_size)

    def rotate_normed(self, x: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor, head_size: int) -> Tensor:
        return _turned(x, weight, eps, cos, sin, head_size)

    def flat_attention(
        self, q: Tensor, k: Tensor, v: Tensor, tokens: Tokens[Tensor], spec: AttentionSpec, bias: Tensor | None
    ) -> Tensor:
        if not attention.agrees(self._device, self._dtype, spec, bias is not None):
            raise NotFlat
        return attention.attend(q, k, v, tokens, spec, bias)


def _summed(
    x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None, eps: float, *, rms: bool, summed: bool = True
) -> tuple[Tensor, Tensor]:
    """Return x + y, and its norm. x, y (T, H), each row contiguous; weight, bias (H,). summed: x + y is read."""
    rows, width = x.shape
    normed = x.new_empty(rows, width)
    total = x.new_empty(rows, width) if summed else normed
    block = triton.next_power_of_2(width)
    arrays = (x, y, weight, weight if bias is None else bias, total, normed)
    _add_norm[rows,](
        *arrays,
        width,
        x.stride(0),
        y.stride(0),
        eps,
        RMS=rms,
        SUMMED=summed,
        BIASED=bias is not None,
        BLOCK=block,
        num_warps=max(1, min(16, block // 256)),
    )
    return total, normed


def _turned(x: Tensor, weight: Tensor | None, eps: float, cos: Tensor, sin: Tensor, head_size: int) -> Tensor:
    """x (T, heads * head_size), each row contiguous. weight (head_size,): of a norm before; None: there is none."""
    rows, width = x.shape
    heads, half = width // head_size, head_size // 2
    out = x.new_empty(rows, width)
    block = triton.next_power_of_2(half)
    at_once = min(triton.next_power_of_2(heads), max(1, NUMBERS_AT_ONCE // block))
    arrays = (x, cos if weight is None else weight, cos, sin, out)
    constants = {"NORMED": weight is not None, "HALF": half, "HEADS": at_once, "BLOCK": block}
    _rotate[rows, triton.cdiv(heads, at_once)](*arrays, heads, x.stride(0), eps, **constants)
    return out


def largest_difference(device: torch.device, dtype: torch.dtype) -> float:
    """Return the largest difference of a kernel's number n from torch's in float32, in units of 1 + |n|."""
    rows, heads, head_size, eps = 3, 3, 48, 1e-6
    width = heads * head_size
    generator = torch.Generator().manual_seed(0)
    sizes = [(rows, width), (rows, width), (width,), (width,), (head_size,), *[(rows, head_size // 2)] * 2]
    arrays = [torch.randn(size, generator=generator).to(device, dtype) for size in sizes]

    def run(ops: TorchOps, dtype: torch.dtype) -> list[Tensor]:
        x, y, weight, bias, head_weight, cos, sin = (array.to(dtype) for array in arrays)
        return [
            *ops.add_layer_norm(x, y, weight, bias, eps),
            ops.layer_norm_of_sum(x, y, weight, bias, eps),
            *ops.add_rms_norm(x, y, weight, eps),
            ops.rotate(x, cos, sin, head_size),
            ops.rotate_normed(x, head_weight, eps, cos, sin, head_size),
            *(ops.gated(x, y, kind) for kind in GATES),
        ]

    pairs = zip(run(FusedOps(device, dtype), dtype), run(TorchOps(device, torch.float32), torch.float32), strict=True)
    return max(float(((got.float() - want).abs() / (1 + want.abs())).max()) for got, want in pairs)
