"""The reference op set: float64, one text after another, written to be obviously correct.

Every other op set is tested against it, and it is tested against transformers (tests/compute). In requests, the heads
of ONNX graphs alone use it (backends/onnx_graph.py). It runs in the caller's thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from vectord.checkpoints.activations import FORMULAS
from vectord.checkpoints.checkpoint import Weight
from vectord.compute.ops.base import Activation, AttentionSpec, Ops, PackedTexts, Tokens

Array: TypeAlias = npt.NDArray[Any]

ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    **FORMULAS,
    "gelu_tanh": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "log1p_relu": lambda x: np.log1p(np.maximum(x, 0)),
    "quick_gelu": lambda x: x * FORMULAS["sigmoid"](1.702 * x),
}


class TextRows(msgspec.Struct, frozen=True):
    """The rows of one text, and the rows that it attends to."""

    queries: slice
    keys: Array  # (K,) row numbers: the parent's, then its own


class NumpyLayout(msgspec.Struct, frozen=True):
    texts: tuple[TextRows, ...]
    spans: tuple[slice, ...]
    positions: Array  # (T,)
    blocks: tuple[TextRows, ...]  # in place of texts, for attention within blocks


def pack(texts: PackedTexts) -> Tokens[Array]:
    """Return a packed batch for NumpyOps."""
    rows = [np.arange(start, stop) for start, stop in pairwise(texts.cu_seqlens)]
    found, positions = [], []
    for i, own in enumerate(rows):
        parent = -1 if texts.parents is None else int(texts.parents[i])
        before = rows[parent] if parent >= 0 else own[:0]
        keys = own if texts.keys is None else own[: texts.keys[i]]
        found.append(TextRows(slice(own[0], own[-1] + 1), np.concatenate([before, keys])))
        positions.append(np.arange(own.size) + before.size)
    layout = NumpyLayout(
        texts=tuple(found),
        spans=tuple(slice(int(start), int(stop)) for start, stop in texts.pooled),
        positions=np.concatenate(positions),
        blocks=tuple(
            TextRows(slice(int(start), int(stop)), np.arange(start, stop)) for start, stop in pairwise(texts.blocks)
        ),
    )
    adapters = None if texts.adapters is None else texts.row_adapters
    coordinates = () if texts.coordinates is None else tuple(texts.coordinates.T)
    return Tokens(texts.ids, texts.type_ids, layout.positions, layout, adapters, texts.features, coordinates)


class NumpyOps(Ops[Array]):
    @property
    def heads(self) -> NumpyOps:
        return self

    def constant(self, weight: Weight) -> Array:
        return weight.array.astype(np.int64) if weight.dtype == "I32" else weight.as_float32().astype(np.float64)

    def matrix(self, weight: Weight) -> Array:
        return self.constant(weight)

    def embed(self, table: Array, ids: Array) -> Array:
        return table[ids]

    def place(self, x: Array, features: Array, marks: Array) -> Array:
        return np.where(marks[:, None] == 1, features, x)

    def add(self, a: Array, b: Array) -> Array:
        return a + b

    def multiply(self, a: Array, b: Array) -> Array:
        return a * b

    def scale(self, x: Array, factor: float) -> Array:
        return x * factor

    def clip(self, x: Array, least: float, most: float) -> Array:
        return np.clip(x, least, most)

    def power(self, x: Array, exponent: float) -> Array:
        powers: Array = x**exponent
        return powers

    def concat(self, parts: Sequence[Array]) -> Array:
        return np.concatenate(parts, axis=1)

    def columns(self, x: Array, start: int, stop: int) -> Array:
        return x[:, start:stop]

    def linear(self, x: Array, weight: Array, bias: Array | None) -> Array:
        y: Array = x @ weight.T
        return y if bias is None else y + bias

    def product(self, x: Array, weight: Array) -> Array:
        return self.linear(x, weight, None)

    def layer_norm(self, x: Array, weight: Array, bias: Array | None, eps: float) -> Array:
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = (centred**2).mean(axis=-1, keepdims=True)
        normed: Array = centred / np.sqrt(variance + eps) * weight
        return normed if bias is None else normed + bias

    def rms_norm(self, x: Array, weight: Array, eps: float) -> Array:
        runs = x.reshape(len(x), -1, weight.size)
        normed: Array = runs / np.sqrt((runs**2).mean(axis=-1, keepdims=True) + eps) * weight
        return normed.reshape(x.shape)

    def normalize(self, x: Array) -> Array:
        norms = np.linalg.norm(x, axis=-1, keepdims=True)
        return x / np.where(norms == 0, 1, norms)

    def activation(self, x: Array, kind: Activation) -> Array:
        return ACTIVATIONS[kind](x)

    def rotate(self, x: Array, cos: Array, sin: Array, head_size: int) -> Array:
        heads = x.reshape(len(x), -1, head_size)
        first, second = np.split(heads, 2, axis=-1)  # (T, heads, head_size / 2)
        cos, sin = cos[:, None, :], sin[:, None, :]
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).reshape(x.shape)

    def attention(
        self, q: Array, k: Array, v: Array, tokens: Tokens[Array], spec: AttentionSpec, bias: Array | None = None
    ) -> Array:
        layout: NumpyLayout = tokens.layout
        out = np.empty_like(q)
        for text in layout.blocks if spec.window == "block" else layout.texts:
            scores = spec.factor * _heads(q[text.queries], spec) @ _keys_by_head(k[text.keys], spec).swapaxes(1, 2)
            distances = _distances(layout, text)  # (L, K)
            if bias is not None:
                scores = scores + bias[:, (bias.shape[1] - 1) // 2 - distances]
            if spec.score_cap is not None:
                scores = spec.score_cap * np.tanh(scores / spec.score_cap)
            out[text.queries] = _mix(scores, distances, v[text.keys], spec)
        return out

    def disentangled_attention(
        self,
        q: Array,
        k: Array,
        v: Array,
        place_k: Array | None,
        place_q: Array | None,
        buckets: Array,
        tokens: Tokens[Array],
        spec: AttentionSpec,
    ) -> Array:
        layout: NumpyLayout = tokens.layout
        out = np.empty_like(q)
        for text in layout.texts:
            queries, keys = _heads(q[text.queries], spec), _keys_by_head(k[text.keys], spec)  # (heads, L or K, size)
            distances = _distances(layout, text)  # (L, K)
            places = buckets[distances + (len(buckets) - 1) // 2]  # (L, K)
            scores = queries @ keys.swapaxes(1, 2)  # (heads, L, K)
            if place_k is not None:
                scores = scores + _take(queries @ _heads(place_k, spec).swapaxes(1, 2), places)
            if place_q is not None:
                scores = scores + _take(keys @ _heads(place_q, spec).swapaxes(1, 2), places.T).swapaxes(1, 2)
            out[text.queries] = _mix(spec.factor * scores, distances, v[text.keys], spec)
        return out

    def shift(self, x: Array, offset: int, tokens: Tokens[Array]) -> Array:
        layout: NumpyLayout = tokens.layout
        out = np.zeros_like(x)
        for text in layout.texts:
            rows = range(text.queries.start, text.queries.stop)
            for row in rows:
                if row + offset in rows:
                    out[row] = x[row + offset]
        return out

    def mixture(
        self, x: Array, logits: Array, top: int, experts: Sequence[Callable[[Array], Array]], tokens: Tokens[Array]
    ) -> Array:
        shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        chosen = np.argsort(-logits, axis=-1, kind="stable")[:, :top]
        out = np.zeros_like(x)
        for row in range(len(x)):
            for e in chosen[row]:
                out[row] += shares[row, e] * experts[e](x[row : row + 1])[0]
        return out

    def text_lengths(self, tokens: Tokens[Array]) -> Array:
        lengths = [text.queries.stop - text.queries.start for text in tokens.layout.texts]
        return np.repeat(lengths, lengths)

    def first(self, x: Array, tokens: Tokens[Array]) -> Array:
        return np.stack([x[span.start] for span in tokens.layout.spans])

    def merge(self, x: Array, rows: int, tokens: Tokens[Array]) -> Array:
        return np.stack([x[span.start : span.start + rows].ravel() for span in tokens.layout.spans])

    def last(self, x: Array, tokens: Tokens[Array]) -> Array:
        return np.stack([x[span.stop - 1] for span in tokens.layout.spans])

    def mean(self, x: Array, tokens: Tokens[Array]) -> Array:
        return np.stack([x[span].mean(axis=0) for span in tokens.layout.spans])

    def max(self, x: Array, tokens: Tokens[Array]) -> Array:
        return np.stack([x[span].max(axis=0) for span in tokens.layout.spans])

    def pooled_linear(self, x: Array, weight: Array, bias: Array, pool: Callable[[Array], Array]) -> Array:
        return pool(self.linear(x, weight, bias))


def _heads(x: Array, spec: AttentionSpec) -> Array:
    """(L, heads * head_size) to (heads, L, head_size)."""
    return x.reshape(len(x), -1, spec.head_size).swapaxes(0, 1)


def _keys_by_head(x: Array, spec: AttentionSpec) -> Array:
    """(K, kv_heads * head_size) to (heads, K, head_size): each key and value serves heads / kv_heads queries."""
    return np.repeat(_heads(x, spec), spec.heads // (spec.kv_heads or spec.heads), axis=0)


def _distances(layout: NumpyLayout, text: TextRows) -> Array:
    """(L, K): the query's position less the key's."""
    distances: Array = layout.positions[text.queries, None] - layout.positions[None, text.keys]
    return distances


def _take(scores: Array, places: Array) -> Array:
    """scores (heads, L, B), places (L, K) -> (heads, L, K)."""
    return np.take_along_axis(scores, np.broadcast_to(places, (len(scores), *places.shape)), axis=2)


def _mix(scores: Array, distances: Array, v: Array, spec: AttentionSpec) -> Array:
    """scores (heads, L, K), v (K, kv_heads * head_size) -> (L, heads * head_size): softmax over the visible keys.

    A query without visible keys gets zeros. Source: torch's scaled_dot_product_attention.
    """
    hidden = np.zeros(distances.shape, bool)
    if spec.after is not None:
        hidden |= -distances > spec.after
    if spec.before is not None:
        hidden |= distances > spec.before
    scores = np.where(hidden, -np.inf, scores)
    largest = scores.max(axis=-1, keepdims=True)
    shares = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
    shares /= np.maximum(shares.sum(axis=-1, keepdims=True), np.finfo(np.float64).tiny)
    mixed: Array = shares @ _keys_by_head(v, spec)  # (heads, L, head_size)
    return mixed.swapaxes(0, 1).reshape(-1, spec.width)
