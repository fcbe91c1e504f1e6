"""TorchOps: Ops[Tensor], each op by torch's own functions.

Attention uses the variable-length kernel where it is available, and length groups everywhere else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from vectord.checkpoints.checkpoint import Weight
from vectord.compute.ops.base import Activation, AttentionSpec, Ops, Tokens
from vectord.compute.ops.torch.flat import FlatLayout, NotFlat
from vectord.compute.ops.torch.grouped import GroupedLayout, gather
from vectord.compute.ops.torch.varlen import Varlen, attend_varlen, takes_heads

logger = logging.getLogger(__name__)

EightBits: TypeAlias = Literal["int8", "fp8"]

FUSED_TOLERANCES = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}  # 4 steps in 16 bits
LARGEST: Mapping[EightBits, int] = {"int8": 127, "fp8": 448}  # symmetric: -128 is not used
FP8_STEP = 16  # the sizes of a product in fp8 are its multiples
QUERIES_AT_ONCE = 1024  # of attention with capped scores
WORDS_AT_ONCE = 4096  # of the vocabulary in pooled_linear: all words for 16,384 tokens would take 1 GB

Layout: TypeAlias = GroupedLayout | FlatLayout

_ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "log1p_relu": lambda x: torch.log1p(F.relu(x)),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": F.silu,
    "softmax": lambda x: x.softmax(dim=-1),
}


class TorchOps(Ops[Tensor]):
    """Ops[Tensor] on one device in one dtype. Shapes: ops/base.py."""

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        varlen: Varlen | None = None,
        *,
        matrices: EightBits | None = None,
        joins: bool = False,
    ) -> None:
        """varlen: the kernel for attention from find_varlen; None: length groups. matrices: their form, if not `dtype`.

        int8: converted before each product, for half the memory of 16 bits in the same time. fp8: multiplied in 8 bits,
        to which each row of the input is rounded too. joins: `linears` is one product. For CUDA: on the CPU the joined
        matrix would be a copy of the file's map.
        """
        self._device = device
        self._dtype = dtype
        self._varlen = varlen
        self._matrices = matrices
        self._joins = joins
        self._scales: dict[Tensor, Tensor] = {}  # (O, 1) of each matrix in 8 bits
        self._joined: dict[Tensor, tuple[Tensor, Tensor | None]] = {}  # matrix and bias, by the first of its parts

    @property
    def heads(self) -> TorchOps:
        return _HeadOps(self._device)

    def constant(self, weight: Weight) -> Tensor:
        """Return the weight on the device. On the CPU, in the checkpoint's own dtype, it is the map and not a copy."""
        return self._read(weight).to(self._device, torch.int32 if weight.dtype == "I32" else self._dtype)

    def matrix(self, weight: Weight) -> Tensor:
        if self._matrices is None or (self._matrices == "fp8" and any(size % FP8_STEP for size in weight.shape)):
            return self.constant(weight)
        numbers, scales = quantize(self._read(weight).to(self._device), self._matrices)
        self._scales[numbers] = scales
        return numbers

    def embed(self, table: Tensor, ids: Tensor) -> Tensor:
        return F.embedding(ids, table)

    def place(self, x: Tensor, features: Tensor, marks: Tensor) -> Tensor:
        return torch.where(marks[:, None] == 1, features.to(x.dtype), x)

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    def multiply(self, a: Tensor, b: Tensor) -> Tensor:
        return a * b

    def scale(self, x: Tensor, factor: float) -> Tensor:
        return x * factor

    def clip(self, x: Tensor, least: float, most: float) -> Tensor:
        return x.clamp(least, most)

    def power(self, x: Tensor, exponent: float) -> Tensor:
        return torch.pow(x, exponent)

    def concat(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(parts), dim=1)

    def columns(self, x: Tensor, start: int, stop: int) -> Tensor:
        return x[:, start:stop]

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if weight.dtype == torch.float8_e4m3fn:
            numbers, scales = quantize(x, "fp8")
            product = torch._scaled_mm(numbers, weight.t(), scales, self._scales[weight].t(), out_dtype=x.dtype)
            return product if bias is None else product + bias
        if weight.dtype == torch.int8:
            weight = restore(weight, self._scales[weight], x.dtype)
        return F.linear(x, weight, bias)

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x, weight)

    def join(self, layers: Sequence[tuple[Tensor, Tensor | None]]) -> None:
        """The parts become views of the joined matrix. Layers that share weights, as ALBERT's, are joined once."""
        weights = [weight for weight, _ in layers]
        if not self._joins or weights[0] in self._joined:
            return
        sizes = [len(weight) for weight in weights]
        joined = torch.cat(weights)
        if weights[0] in self._scales:
            self._scales[joined] = torch.cat([self._scales[weight] for weight in weights])
        biases = None
        if any(bias is not None for _, bias in layers):
            zeros = torch.split(joined.new_zeros(len(joined), dtype=self._dtype), sizes)
            biases = torch.cat([none if bias is None else bias for none, (_, bias) in zip(zeros, layers, strict=True)])
        for weight, view in zip(weights, torch.split(joined, sizes), strict=True):
            weight.data = view
        self._joined[weights[0]] = joined, biases

    def linears(self, x: Tensor, layers: Sequence[tuple[Tensor, Tensor | None]]) -> list[Tensor]:
        joined = self._joined.get(layers[0][0])
        if joined is None:
            return super().linears(x, layers)
        return list(torch.split(self.linear(x, *joined), [len(weight) for weight, _ in layers], dim=-1))

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        return F.layer_norm(x, weight.shape, weight, bias, eps)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return F.rms_norm(x.view(len(x), -1, len(weight)), weight.shape, weight, eps).view(x.shape)

    def normalize(self, x: Tensor) -> Tensor:
        return F.normalize(x.float(), dim=-1, eps=1e-30).to(x.dtype)  # in float16, 1e-30 would be 0

    def activation(self, x: Tensor, kind: Activation) -> Tensor:
        return _ACTIVATIONS[kind](x)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor, head_size: int) -> Tensor:
        first, second = x.view(len(x), -1, head_size).chunk(2, dim=-1)  # (T, heads, head_size / 2)
        cos, sin = cos[:, None, :], sin[:, None, :]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).view(x.shape)

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, tokens: Tokens[Tensor], spec: AttentionSpec, bias: Tensor | None = None
    ) -> Tensor:
        layout: Layout = tokens.layout
        plain = bias is None and spec.score_cap is None
        if self._varlen is not None and plain and takes_heads(spec) and layout.suits_varlen(spec):
            return attend_varlen(self._varlen, q, k, v, layout.lengths, spec)
        if isinstance(layout, FlatLayout):
            return self.flat_attention(q, k, v, tokens, spec, bias)
        answers = []
        masks = layout.seen(spec) if bias is None else layout.biased(bias, spec)
        for group, mask in zip(layout.grouped(spec.reach).groups, masks, strict=True):
            queries = _heads(gather(q, group.queries), spec)
            keys, values = (_key_heads(gather(x, group.keys), spec) for x in (k, v))
            if spec.score_cap is None:
                answer = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=spec.scale)
            else:
                answer = _attend_capped(queries, keys, values, mask, spec, spec.score_cap)
            answers.append(answer.transpose(1, 2).reshape(-1, spec.width))  # (n * Q, heads * head_size)
        return torch.cat(answers).index_select(0, layout.grouped(spec.reach).unpack)

    def flat_attention(
        self, q: Tensor, k: Tensor, v: Tensor, tokens: Tokens[Tensor], spec: AttentionSpec, bias: Tensor | None
    ) -> Tensor:
        """`attention` in the flat layout, where the variable-length kernel cannot compute it."""
        raise NotFlat

    def disentangled_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        place_k: Tensor | None,
        place_q: Tensor | None,
        buckets: Tensor,
        tokens: Tokens[Tensor],
        spec: AttentionSpec,
    ) -> Tensor:
        layout = _in_groups(tokens.layout)
        answers = []
        masks, laid_out = layout.seen(spec), layout.places(buckets, spec)
        for group, mask, places in zip(layout.grouped(spec.reach).groups, masks, laid_out, strict=True):
            queries = _heads(gather(q, group.queries), spec)  # (n, heads, Q, head_size)
            keys, values = (_key_heads(gather(x, group.keys), spec) for x in (k, v))
            scores = queries @ keys.mT  # (n, heads, Q, K)
            if place_k is not None:
                scores = scores + _take(queries @ _heads(place_k[None], spec).mT, places)
            if place_q is not None:
                scores = scores + _take(keys @ _heads(place_q[None], spec).mT, places.mT).mT
            shares = (scores * spec.factor).masked_fill(~mask, -torch.inf).softmax(dim=-1)
            answers.append((shares @ values).transpose(1, 2).reshape(-1, spec.width))
        return torch.cat(answers).index_select(0, layout.grouped(spec.reach).unpack)

    def shift(self, x: Tensor, offset: int, tokens: Tokens[Tensor]) -> Tensor:
        at = tokens.positions
        rows = (torch.arange(len(x), device=x.device) + offset).clamp(0, len(x) - 1)
        inside = at.index_select(0, rows) == at + offset
        return x.index_select(0, rows).masked_fill(~inside[:, None], 0)

    def mixture(
        self, x: Tensor, logits: Tensor, top: int, experts: Sequence[Callable[[Tensor], Tensor]], tokens: Tokens[Tensor]
    ) -> Tensor:
        _in_groups(tokens.layout)  # the number of an expert's rows differs from batch to batch
        shares, chosen = logits.softmax(dim=-1, dtype=torch.float32).topk(top, dim=-1)  # (T, top)
        shares = shares.to(x.dtype)
        out = torch.zeros_like(x)
        for e, expert in enumerate(experts):
            rows, places = (chosen == e).nonzero(as_tuple=True)
            if len(rows):
                out.index_add_(0, rows, expert(x.index_select(0, rows)) * shares[rows, places, None])
        return out

    def text_lengths(self, tokens: Tokens[Tensor]) -> Tensor:
        layout: Layout = tokens.layout
        return layout.row_lengths

    def first(self, x: Tensor, tokens: Tokens[Tensor]) -> Tensor:
        return x.index_select(0, tokens.layout.firsts)

    def merge(self, x: Tensor, rows: int, tokens: Tokens[Tensor]) -> Tensor:
        firsts = tokens.layout.firsts
        places = firsts[:, None] + torch.arange(rows, device=firsts.device)
        return x.index_select(0, places.view(-1)).view(len(firsts), -1)

    def last(self, x: Tensor, tokens: Tokens[Tensor]) -> Tensor:
        return x.index_select(0, tokens.layout.lasts)

    def mean(self, x: Tensor, tokens: Tokens[Tensor]) -> Tensor:
        layout: Layout = tokens.layout
        return layout.mean(x).to(x.dtype)

    def max(self, x: Tensor, tokens: Tokens[Tensor]) -> Tensor:
        layout: Layout = tokens.layout
        return layout.max(x)

    def pooled_linear(self, x: Tensor, weight: Tensor, bias: Tensor, pool: Callable[[Tensor], Tensor]) -> Tensor:
        parts = zip(torch.split(weight, WORDS_AT_ONCE), torch.split(bias, WORDS_AT_ONCE), strict=True)
        return torch.cat([pool(F.linear(x, *part)) for part in parts], dim=1)

    @staticmethod
    def _read(weight: Weight) -> Tensor:
        tensor = torch.from_numpy(weight.array)
        return tensor.view(torch.bfloat16) if weight.dtype == "BF16" else tensor


class _HeadOps(TorchOps):
    """In float32. Takes states in any dtype: as the input of a pooling or, token by token, of a linear layer.

    Products of 16 bits return 16 bits: logits of "yes" and "no" would have steps of 0.1.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device, torch.float32)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super().linear(x.float(), weight, bias)

    def first(self, x: Tensor, tokens: Tokens[Tensor]) -> Tensor:
        return super().first(x, tokens).float()

    def last(self, x: Tensor, tokens: Tokens[Tensor]) -> Tensor:
        return super().last(x, tokens).float()

    def mean(self, x: Tensor, tokens: Tokens[Tensor]) -> Tensor:
        layout: Layout = tokens.layout
        return layout.mean(x)

    def max(self, x: Tensor, tokens: Tokens[Tensor]) -> Tensor:
        return super().max(x, tokens).float()


def quantize(rows: Tensor, form: EightBits) -> tuple[Tensor, Tensor]:
    """(N, H) to (N, H) in 8 bits and float32 scales (N, 1), with which a row's largest number is LARGEST.

    In int8, their product differs by at most half a scale from the row; in fp8, by a sixteenth of each number.
    """
    rows = rows.float()
    largest = rows.abs().amax(dim=1, keepdim=True)
    scales = torch.where(largest > 0, largest / LARGEST[form], 1.0)
    numbers = (rows / scales).clamp(-LARGEST[form], LARGEST[form])
    return numbers.round().to(torch.int8) if form == "int8" else numbers.to(torch.float8_e4m3fn), scales


def restore(numbers: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the rounded matrix. Multiplied in float32, because a scale may be too small for float16."""
    return (numbers * scales).to(dtype)


def agrees_with_torch(what: str, difference: Callable[[], float], dtype: torch.dtype) -> bool:
    """Return whether kernels of our own compile and agree with torch's functions; if not, the log has the reason.

    difference: runs them and returns the largest difference of a number n from torch's in float32, in units of 1 + |n|.
    """
    try:
        largest = difference()
    except Exception as error:  # Triton's own, such as too little shared memory, the compiler's or the driver's
        logger.warning("%s cannot be compiled, so torch's own are used: %s", what, str(error).split("\n")[0][:200])
        return False
    if not largest < FUSED_TOLERANCES[dtype]:
        logger.warning("%s: the result differs from torch's own functions by %.2g, so those are used", what, largest)
        return False
    return True


def _in_groups(layout: Layout) -> GroupedLayout:
    if isinstance(layout, FlatLayout):
        raise NotFlat
    return layout


def _heads(x: Tensor, spec: AttentionSpec) -> Tensor:
    """(n, L, heads * head_size) to (n, heads, L, head_size)."""
    return x.view(*x.shape[:2], -1, spec.head_size).transpose(1, 2)


def _key_heads(x: Tensor, spec: AttentionSpec) -> Tensor:
    """(n, K, kv_heads * head_size) to (n, heads, K, head_size): a key and a value serve heads / kv_heads queries."""
    return _heads(x, spec).repeat_interleave(spec.heads // (spec.kv_heads or spec.heads), dim=1)


def _attend_capped(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, spec: AttentionSpec, cap: float
) -> Tensor:
    """Attention with AttentionSpec.score_cap, which torch's kernels lack: (n, heads, Q, head_size).

    In float32 from the scores on. Some queries at a time: the scores of 8,192 at once would take 2 GB with 8 heads.
    """
    mask = mask.expand(-1, -1, queries.shape[2], -1)
    parts = []
    for some, seen in zip(torch.split(queries, QUERIES_AT_ONCE, 2), torch.split(mask, QUERIES_AT_ONCE, 2), strict=True):
        scores = cap * torch.tanh((some @ keys.mT).float() * (spec.factor / cap))
        shares = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1)
        # The softmax of a query without visible keys is NaN; torch's kernels return zeros.
        parts.append(shares.masked_fill(~seen, 0).to(values.dtype) @ values)
    return torch.cat(parts, dim=2)


def _take(scores: Tensor, places: Tensor) -> Tensor:
    """scores (n, heads, L, B), places (n, 1, L, K) to (n, heads, L, K)."""
    return scores.gather(-1, places.expand(-1, scores.shape[1], -1, -1))
