"""The op set that runs eagerly on torch: CUDA, MPS, and the CPU for comparison.

Called by backends/torch.py on that device's worker thread. Attention is a variable-length kernel where the GPU has
one that can do it, and runs by length groups (ops/groups.py) everywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from vectord.artifacts.checkpoint import Weight
from vectord.ops.base import Activation, AttentionSpec, PackedTexts, Tokens
from vectord.ops.groups import (
    Group,
    Rectangle,
    attending_pieces,
    keys_end_to_end,
    length_groups,
    piece_order,
    pooled_pieces,
    positions,
    unpack_rows,
)

MAX_GROUPS = 4  # more cost more calls than the padding they save (measured on CPU)
WORDS_AT_ONCE = 4096  # of the vocabulary in max_linear: all words of 16,384 tokens would be 1 GB

_ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "identity": lambda x: x,
}

# torch.nn.attention.varlen.varlen_attn
Varlen: TypeAlias = Callable[..., Tensor | tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class DeviceRectangle:
    """n runs of rows, each padded to L places, on the device."""

    rows: Tensor  # (n * L,) row numbers into (T, H); a padded place repeats its text's first row
    valid: Tensor  # (n, L) False on padded places


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """n pieces of Q query and K key places."""

    queries: DeviceRectangle
    keys: DeviceRectangle  # `queries` itself where every piece attends to itself


@dataclass(frozen=True, slots=True)
class Grouped:
    """How texts, cut or whole, lie in groups."""

    groups: tuple[DeviceGroup, ...]
    unpack: Tensor  # (T,) place of each row among the groups' query places, laid end to end


@dataclass(frozen=True, slots=True)
class Spans:
    """How the spans that are pooled lie in groups."""

    rectangles: tuple[DeviceRectangle, ...]
    order: Tensor  # (M,) place of each span among the groups' spans, laid end to end


@dataclass(frozen=True, slots=True)
class Lengths:
    """What the variable-length kernel reads: N texts as queries, and the keys of each, end to end."""

    query_ends: Tensor  # (N + 1,) from 0 to T
    key_ends: Tensor  # (N + 1,) from 0
    longest_query: int
    longest_key: int
    key_rows: Tensor | None  # row numbers of the keys; None: all rows as they are


class Layout:
    """Where one batch's texts and spans begin and end. What an op needs goes to the device when one first asks."""

    def __init__(self, texts: PackedTexts, at: Tensor) -> None:
        """at (T,): positions, on the device."""
        self._texts = texts
        self._at = at
        self._grouped: dict[int | None, Grouped] = {}
        self._ahead: dict[int | None, list[Tensor]] = {}
        self._seen: dict[tuple[bool, int | None], list[Tensor]] = {}

    @property
    def cuts_keys(self) -> bool:
        """Whether some rows of a text are attended to by nobody."""
        return self._texts.keys is not None

    @cached_property
    def firsts(self) -> Tensor:
        """(M,) first row of each span"""
        return self._send(self._texts.pooled[:, 0])

    @cached_property
    def lasts(self) -> Tensor:
        """(M,) last row of each span"""
        return self._send(self._texts.pooled[:, 1] - 1)

    @cached_property
    def spans(self) -> Spans:
        groups = length_groups(pooled_pieces(self._texts), MAX_GROUPS, length_step=1)
        return Spans(tuple(self._rectangle(group.queries) for group in groups), self._send(piece_order(groups)))

    @cached_property
    def lengths(self) -> Lengths:
        ends, rows = self._texts.cu_seqlens, None
        if self._texts.keys is not None or self._texts.parents is not None:
            key_rows, ends = keys_end_to_end(self._texts)
            rows = self._send(key_rows)
        longest_query, longest_key = (int(np.diff(some).max()) for some in (self._texts.cu_seqlens, ends))
        return Lengths(self._send(self._texts.cu_seqlens), self._send(ends), longest_query, longest_key, rows)

    def grouped(self, window: int | None) -> Grouped:
        """Texts as groups, cut into pieces where the window is narrow."""
        if window not in self._grouped:
            groups = length_groups(attending_pieces(self._texts, window), MAX_GROUPS, length_step=1)
            unpack = self._send(unpack_rows(groups, self._texts.ids.size))
            self._grouped[window] = Grouped(tuple(self._group(group) for group in groups), unpack)
        return self._grouped[window]

    def ahead(self, window: int | None) -> list[Tensor]:
        """Of each group: (n, 1, Q, K) the key's position less the query's."""
        if window not in self._ahead:
            self._ahead[window] = [
                _gather(self._at, group.keys)[:, None, None, :] - _gather(self._at, group.queries)[:, None, :, None]
                for group in self.grouped(window).groups
            ]
        return self._ahead[window]

    def seen(self, causal: bool, window: int | None) -> list[Tensor]:
        """Of each group: (n, 1, Q or 1, K) whether the query may see the key. All layers share it."""
        if (causal, window) not in self._seen:
            masks = [group.keys.valid[:, None, None, :] for group in self.grouped(window).groups]
            if causal:
                masks = [mask & (ahead <= 0) for mask, ahead in zip(masks, self.ahead(window), strict=True)]
            if window is not None:
                masks = [mask & (ahead.abs() <= window) for mask, ahead in zip(masks, self.ahead(window), strict=True)]
            self._seen[causal, window] = masks
        return self._seen[causal, window]

    def _group(self, group: Group) -> DeviceGroup:
        queries = self._rectangle(group.queries)
        return DeviceGroup(queries, queries if group.keys is group.queries else self._rectangle(group.keys))

    def _rectangle(self, rectangle: Rectangle) -> DeviceRectangle:
        return DeviceRectangle(self._send(rectangle.rows.ravel()), self._send(rectangle.valid))

    def _send(self, array: npt.NDArray[np.generic]) -> Tensor:
        return torch.tensor(array, device=self._at.device)


def pack(texts: PackedTexts, device: torch.device) -> Tokens[Tensor]:
    """A packed batch for TorchOps, on `device`."""
    ids, type_ids, at = (torch.tensor(rows, device=device) for rows in (texts.ids, texts.type_ids, positions(texts)))
    return Tokens(ids, type_ids, at, Layout(texts, at))


class TorchOps:
    """Ops[Tensor] on one device in one dtype. Shapes: ops/base.py."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype
        self._varlen = find_varlen(device, dtype)

    def constant(self, weight: Weight) -> Tensor:
        """On the CPU and in the checkpoint's own dtype this is its map, not a copy."""
        tensor = torch.from_numpy(weight.array)
        if weight.dtype == "BF16":
            tensor = tensor.view(torch.bfloat16)
        return tensor.to(self._device, torch.int32 if weight.dtype == "I32" else self._dtype)

    def embed(self, table: Tensor, ids: Tensor) -> Tensor:
        return F.embedding(ids, table)

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    def multiply(self, a: Tensor, b: Tensor) -> Tensor:
        return a * b

    def scale(self, x: Tensor, factor: float) -> Tensor:
        return x * factor

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)

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
        if self._varlen is not None and bias is None and _suits_varlen(layout, spec):
            return _attend_varlen(self._varlen, q, k, v, layout, spec)
        answers = []
        masks = layout.seen(spec.causal, spec.window)
        if bias is not None:
            middle = bias.shape[1] // 2
            aheads = layout.ahead(spec.window)
            laid_out = [bias[:, ahead[:, 0] + middle].transpose(0, 1) for ahead in aheads]  # (n, heads, Q, K) each
            masks = [some.masked_fill(~mask, -torch.inf) for some, mask in zip(laid_out, masks, strict=True)]
        for group, mask in zip(layout.grouped(spec.window).groups, masks, strict=True):
            queries = _heads(_gather(q, group.queries), spec)
            keys, values = (_key_heads(_gather(x, group.keys), spec) for x in (k, v))
            answer = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=spec.scale)
            answers.append(answer.transpose(1, 2).reshape(-1, spec.width))  # (n * Q, heads * head_size)
        return torch.cat(answers).index_select(0, layout.grouped(spec.window).unpack)

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
        layout: Layout = tokens.layout
        answers = []
        masks, aheads = layout.seen(spec.causal, spec.window), layout.ahead(spec.window)
        for group, mask, ahead in zip(layout.grouped(spec.window).groups, masks, aheads, strict=True):
            queries = _heads(_gather(q, group.queries), spec)  # (n, heads, Q, head_size)
            keys, values = (_key_heads(_gather(x, group.keys), spec) for x in (k, v))
            places = buckets[len(buckets) // 2 - ahead]  # (n, 1, Q, K)
            scores = queries @ keys.mT  # (n, heads, Q, K)
            if place_k is not None:
                scores = scores + _take(queries @ _heads(place_k[None], spec).mT, places)
            if place_q is not None:
                scores = scores + _take(keys @ _heads(place_q[None], spec).mT, places.mT).mT
            shares = (scores * _scale(spec)).masked_fill(~mask, -torch.inf).softmax(dim=-1)
            answers.append((shares @ values).transpose(1, 2).reshape(-1, spec.width))
        return torch.cat(answers).index_select(0, layout.grouped(spec.window).unpack)

    def first(self, x: Tensor, tokens: Tokens[Tensor]) -> Tensor:
        return x.index_select(0, tokens.layout.firsts)

    def last(self, x: Tensor, tokens: Tokens[Tensor]) -> Tensor:
        return x.index_select(0, tokens.layout.lasts)

    def mean(self, x: Tensor, tokens: Tokens[Tensor]) -> Tensor:
        spans: Spans = tokens.layout.spans
        return torch.cat([_mean(x, rectangle) for rectangle in spans.rectangles]).index_select(0, spans.order)

    def max(self, x: Tensor, tokens: Tokens[Tensor]) -> Tensor:
        spans: Spans = tokens.layout.spans
        maxima = [_gather(x, rectangle).amax(dim=1) for rectangle in spans.rectangles]  # padding repeats a row
        return torch.cat(maxima).index_select(0, spans.order)

    def max_linear(self, x: Tensor, weight: Tensor, bias: Tensor, tokens: Tokens[Tensor]) -> Tensor:
        parts = zip(torch.split(weight, WORDS_AT_ONCE), torch.split(bias, WORDS_AT_ONCE), strict=True)
        return torch.cat([self.max(F.linear(x, *part), tokens) for part in parts], dim=1)


def find_varlen(device: torch.device, dtype: torch.dtype) -> Varlen | None:
    """torch's variable-length kernel (FlashAttention), where it runs: on CUDA, 16 bits, Ampere or newer.

    None in a torch that has none, or whose kernel knows no windows yet (before 2.11).
    """
    if device.type != "cuda" or dtype not in {torch.float16, torch.bfloat16}:
        return None
    if torch.cuda.get_device_capability(device) < (8, 0):
        return None
    try:
        from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415
    except ImportError:
        return None
    return varlen_attn if "enable_gqa" in signature(varlen_attn).parameters else None


def _suits_varlen(layout: Layout, spec: AttentionSpec) -> bool:
    """The kernel is compiled for these head sizes, and takes a text's last key to be at its last query's position."""
    fits = spec.head_size <= 256 and spec.head_size % 8 == 0
    return fits and not (layout.cuts_keys and (spec.causal or spec.window is not None))


def _attend_varlen(varlen: Varlen, q: Tensor, k: Tensor, v: Tensor, layout: Layout, spec: AttentionSpec) -> Tensor:
    lengths = layout.lengths
    if lengths.key_rows is not None:
        k, v = (x.index_select(0, lengths.key_rows) for x in (k, v))
    reach = -1 if spec.window is None else spec.window
    answer = varlen(
        *(x.view(len(x), -1, spec.head_size) for x in (q, k, v)),
        lengths.query_ends,
        lengths.key_ends,
        lengths.longest_query,
        lengths.longest_key,
        scale=spec.scale,
        window_size=(reach, 0 if spec.causal else reach),
        enable_gqa=True,
    )
    assert isinstance(answer, Tensor), "a tuple comes only when return_aux is asked for"
    return answer.reshape(-1, spec.width)


def _scale(spec: AttentionSpec) -> float:
    return spec.head_size**-0.5 if spec.scale is None else spec.scale


def _heads(x: Tensor, spec: AttentionSpec) -> Tensor:
    """(n, L, heads * head_size) to (n, heads, L, head_size)."""
    return x.view(*x.shape[:2], -1, spec.head_size).transpose(1, 2)


def _key_heads(x: Tensor, spec: AttentionSpec) -> Tensor:
    """(n, K, kv_heads * head_size) to (n, heads, K, head_size): a key and a value serve heads / kv_heads queries."""
    return _heads(x, spec).repeat_interleave(spec.heads // (spec.kv_heads or spec.heads), dim=1)


def _take(scores: Tensor, places: Tensor) -> Tensor:
    """scores (n, heads, L, B), places (n, 1, L, K) to (n, heads, L, K)."""
    return scores.gather(-1, places.long().expand(-1, scores.shape[1], -1, -1))


def _mean(x: Tensor, rectangle: DeviceRectangle) -> Tensor:
    """(T, H) to (n, H). Sums in float32: bfloat16 would lose the small terms of a long text."""
    total = _gather(x, rectangle).float().masked_fill(~rectangle.valid[:, :, None], 0).sum(dim=1)
    means: Tensor = total / rectangle.valid.sum(dim=1, keepdim=True)
    return means.to(x.dtype)


def _gather(x: Tensor, rectangle: DeviceRectangle) -> Tensor:
    """(T, ...) to (n, L, ...)."""
    return x.index_select(0, rectangle.rows).view(*rectangle.valid.shape, *x.shape[1:])
