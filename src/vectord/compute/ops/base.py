"""The ops that networks are written in, and the form of a packed batch.

One module of this folder is one op set: `openvino` builds a symbolic graph (CPU), `torch` runs eagerly (CUDA, MPS,
CPU), `numpy` computes in float64 as the reference for the others. Every activation is (T, H): the tokens of all texts
of a batch, end to end. Only attention and the pooling ops read `tokens.layout`, which the op set's own `pack` makes
for each batch. Networks import this module only; a backend combines network and op set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar

import msgspec
import numpy as np

from vectord.checkpoints.checkpoint import Weight
from vectord.checkpoints.spec import ScoreActivation
from vectord.schema import Features, Int32

T = TypeVar("T")  # the op set's own array: an openvino node, a torch tensor, a numpy array

Activation = Literal[ScoreActivation, "gelu_tanh", "log1p_relu", "quick_gelu"]


# A row attends to those whose position differs by at most this; or to the others of its block (PackedTexts.blocks).
Window: TypeAlias = int | Literal["block"]


class PackedTexts(msgspec.Struct, frozen=True, kw_only=True):
    """N texts end to end, T rows in all, without padding: the input of every op set's `pack`.

    A text's rows attend to its own rows, or to the first `keys` of them, and before those to all rows of its parent. A
    parent is an earlier text, itself without a parent, that is the common beginning of several texts of a causal model.
    Positions continue from the parent's.
    """

    ids: Int32  # (T,)
    type_ids: Int32  # (T,)
    cu_seqlens: Int32  # (N + 1,) from 0 to T, no text empty
    spans: Int32 | None = None  # (M, 2) first and last + 1 row of each pooled span; None: one span a text
    keys: Int32 | None = None  # (N,) how many of a text's first rows are attended to; None: all
    parents: Int32 | None = None  # (N,) -1: no parent; None: no text has one
    adapters: Int32 | None = None  # (N,) i: the i-th adapter of the model, from 1; 0: none; None: no text has one
    features: Features | None = None  # (T, W) of an image, its patches; of a text, the rows that its images have in it
    coordinates: Int32 | None = None  # (T, P) further numbers of each row, such as its place in an image; None: all 0

    @classmethod
    def of(cls, texts: Sequence[Int32]) -> PackedTexts:
        """Return plain texts, each given by its ids, end to end."""
        ids = np.concatenate(texts)
        cu_seqlens = np.cumsum([0, *map(len, texts)], dtype=np.int32)
        return cls(ids=ids, type_ids=np.zeros_like(ids), cu_seqlens=cu_seqlens)

    @property
    def pooled(self) -> Int32:
        """`spans`, or one span for each text. (M, 2)"""
        return np.stack([self.cu_seqlens[:-1], self.cu_seqlens[1:]], axis=1) if self.spans is None else self.spans

    @property
    def blocks(self) -> Int32:
        """Where each block begins and ends: adjacent rows of a text with the same first coordinate. (B + 1,)"""
        if self.coordinates is None:
            return self.cu_seqlens
        starts = np.flatnonzero(np.diff(self.coordinates[:, 0])) + 1
        return np.union1d(self.cu_seqlens, starts).astype(np.int32)

    @property
    def row_adapters(self) -> Int32:
        """The adapter of each row, 0 for none. (T,)"""
        if self.adapters is None:
            return np.zeros_like(self.ids)
        return np.repeat(self.adapters, np.diff(self.cu_seqlens)).astype(np.int32)


class Tokens(msgspec.Struct, Generic[T], frozen=True):
    """One packed batch in the op set's form."""

    ids: T  # (T,) int32
    type_ids: T  # (T,) int32
    positions: T  # (T,) int32, from 0 in each text, after its parent's
    layout: Any  # where texts and spans begin and end, in the op set's own form
    adapters: T | None = None  # (T,) int32, 0: none; None: no row has one
    features: T | None = None  # (T, W) as PackedTexts.features; None: all rows are words
    coordinates: tuple[T, ...] = ()  # the P columns of PackedTexts.coordinates, each (T,); empty: all 0


class AttentionSpec(msgspec.Struct, frozen=True, kw_only=True):
    heads: int
    head_size: int
    kv_heads: int | None = None  # None: as many as heads; else heads / kv_heads queries share a key and a value
    scale: float | None = None  # None: head_size ** -0.5
    causal: bool = False  # a token attends to itself and to earlier ones
    window: Window | None = None  # None: to all of its text
    window_after: int | None = None  # with a number as the window: the same for later tokens, if that differs
    score_cap: float | None = None  # a scaled score s becomes score_cap * tanh(s / score_cap), before the mask

    @property
    def width(self) -> int:
        """The width of q and of the output."""
        return self.heads * self.head_size

    @property
    def before(self) -> int | None:
        """How far a token sees earlier ones; None: to the beginning of its text or block."""
        return None if self.window == "block" else self.window

    @property
    def after(self) -> int | None:
        """How far it sees later ones; None: to the end."""
        if self.causal:
            return 0
        return self.before if self.window_after is None else self.window_after

    @property
    def reach(self) -> Window | None:
        """The window that has as many tokens on either side as this one has on its longer side."""
        if self.window == "block" or self.window is None or self.window_after is None:
            return self.window
        return max(self.window, self.window_after)

    @property
    def factor(self) -> float:
        return self.head_size**-0.5 if self.scale is None else self.scale


class Ops(Protocol[T]):
    """Shapes: T tokens, N texts, M spans, H width of the input, O width of the output, V words.

    Sizes were checked when the weights were read. ops/numpy.py defines each op exactly. An op with a body here is a
    sequence of others, which an op set may compute in one step.
    """

    @property
    def heads(self) -> Ops[T]:
        """The op set for heads: it computes in float32 where this op set has fewer bits, and accepts its states."""

    def constant(self, weight: Weight) -> T: ...
    def matrix(self, weight: Weight) -> T: ...  # a constant that only `linear` reads: it may be stored in fewer bits
    def embed(self, table: T, ids: T) -> T: ...  # (V, H), (T,) -> (T, H)
    def place(self, x: T, features: T, marks: T) -> T: ...  # (T, H), (T, H), (T,): the row of `features` if marked by 1
    def add(self, a: T, b: T) -> T: ...
    def multiply(self, a: T, b: T) -> T: ...
    def scale(self, x: T, factor: float) -> T: ...
    def clip(self, x: T, least: float, most: float) -> T: ...
    def power(self, x: T, exponent: float) -> T: ...  # of positive numbers
    def concat(self, parts: Sequence[T]) -> T: ...  # (M, H), (M, O) ... -> (M, H + O + ...)
    def columns(self, x: T, start: int, stop: int) -> T: ...  # (T, H) -> (T, stop - start)
    def linear(self, x: T, weight: T, bias: T | None) -> T: ...  # (T, H), (O, H), (O,) -> (T, O)
    def product(self, x: T, weight: T) -> T: ...  # `linear` of a constant: never computed in int8

    def join(self, layers: Sequence[tuple[T, T | None]]) -> None:
        """Prepare layers, each a weight and a bias, that `linears` will compute for the same input."""
        assert layers, "nothing to prepare"

    def linears(self, x: T, layers: Sequence[tuple[T, T | None]]) -> list[T]:
        """`linear` by each layer."""
        return [self.linear(x, weight, bias) for weight, bias in layers]

    def gated(self, gate: T, up: T, kind: Activation) -> T:  # (T, F), (T, F) -> (T, F)
        return self.multiply(self.activation(gate, kind), up)

    def layer_norm(self, x: T, weight: T, bias: T | None, eps: float) -> T: ...
    def rms_norm(self, x: T, weight: T, eps: float) -> T: ...  # (T, k * W), (W,): each run of W numbers on its own

    def add_layer_norm(self, x: T, y: T, weight: T, bias: T | None, eps: float) -> tuple[T, T]:
        """x + y, and its layer norm."""
        total = self.add(x, y)
        return total, self.layer_norm(total, weight, bias, eps)

    def layer_norm_of_sum(self, x: T, y: T, weight: T, bias: T | None, eps: float) -> T:
        """The second of `add_layer_norm`, for a sum that nothing else reads."""
        return self.add_layer_norm(x, y, weight, bias, eps)[1]

    def add_rms_norm(self, x: T, y: T, weight: T, eps: float) -> tuple[T, T]:
        """x + y, and its RMS norm. x, y (T, W), weight (W,)"""
        total = self.add(x, y)
        return total, self.rms_norm(total, weight, eps)

    def normalize(self, x: T) -> T: ...  # each row to length 1; a row of zeros stays zeros
    def activation(self, x: T, kind: Activation) -> T: ...

    def rotate(self, x: T, cos: T, sin: T, head_size: int) -> T:
        """Rotary positions. x (T, heads * head_size); cos, sin (T, head_size / 2): first half against second half."""
        ...

    def rotate_normed(self, x: T, weight: T, eps: float, cos: T, sin: T, head_size: int) -> T:
        """`rotate` after `rms_norm` of each head. weight (head_size,)"""
        return self.rotate(self.rms_norm(x, weight, eps), cos, sin, head_size)

    def attention(self, q: T, k: T, v: T, tokens: Tokens[T], spec: AttentionSpec, bias: T | None = None) -> T:
        """q (T, heads * head_size), k and v (T, kv_heads * head_size) -> (T, heads * head_size).

        bias (heads, 2 * M - 1): added to the scaled score of the query at position i and the key at position j, by
        j - i + M - 1; M is at least the longest text.
        """

    def disentangled_attention(
        self, q: T, k: T, v: T, place_k: T | None, place_q: T | None, buckets: T, tokens: Tokens[T], spec: AttentionSpec
    ) -> T:
        """DeBERTa's: the score of query i and key j is scale * (q_i . k_j + q_i . place_k[b] + k_j . place_q[b]).

        place_k, place_q (B, heads * head_size): keys and queries of the B relative places, None: no such term;
        buckets (2 * M - 1,) int32: b by i - j + M - 1, M at least the longest text.
        """

    def shift(self, x: T, offset: int, tokens: Tokens[T]) -> T:
        """The row of each token's neighbour, `offset` positions later in its text; zeros beyond the text's ends. For
        batches without parents."""

    def mixture(self, x: T, logits: T, top: int, experts: Sequence[Callable[[T], T]], tokens: Tokens[T]) -> T:
        """Each row's sum over its `top` experts of the highest logits (T, E): the expert's softmax among all experts,
        times its output for the row. The softmax is in float32; rows of an expert are computed together."""

    def text_lengths(self, tokens: Tokens[T]) -> T: ...  # (T,) int32, of each row's text. For batches without parents
    def first(self, x: T, tokens: Tokens[T]) -> T: ...  # (T, H) -> (M, H), each span's first row
    def merge(self, x: T, rows: int, tokens: Tokens[T]) -> T: ...  # (M, rows * H), each span's first rows, end to end
    def last(self, x: T, tokens: Tokens[T]) -> T: ...
    def mean(self, x: T, tokens: Tokens[T]) -> T: ...
    def max(self, x: T, tokens: Tokens[T]) -> T: ...

    def pooled_linear(self, x: T, weight: T, bias: T, pool: Callable[[T], T]) -> T:
        """`pool(linear(x, weight, bias))`, some words at a time, so that (T, V) is never in memory at once: (T, H),
        (V, H), (V,) -> (M, V). pool: (T, H) -> (M, H), of each column by itself."""
