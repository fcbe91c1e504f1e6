"""The ops a network is written in, and what tells them where one text ends.

One module of this folder is one op set: `openvino` builds a symbolic graph (CPU), `torch` runs eagerly (CUDA, MPS,
CPU), `numpy` computes in float64 and is what the others are tested against. Every activation is (T, H): the tokens
of all texts of a batch, end to end. Only `attention` and the pooling ops look at `tokens.layout`, which the op set's
own `pack` makes for each batch. Networks see this module alone; a backend brings network and op set together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

from vectord.artifacts.checkpoint import Weight

T = TypeVar("T")  # the op set's own array: an openvino node, a torch tensor, a numpy array

Activation = Literal["gelu", "gelu_tanh", "relu", "silu", "tanh", "identity"]


@dataclass(frozen=True, slots=True)
class Tokens(Generic[T]):
    """One packed batch as the op set sees it."""

    ids: T  # (T,) int32
    type_ids: T  # (T,) int32
    positions: T  # (T,) int32, from 0 in each text
    layout: Any  # where texts begin and end, in the op set's own form


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    heads: int
    head_size: int
    scale: float | None = None  # None: head_size ** -0.5


class Ops(Protocol[T]):
    """Shapes: T tokens, N texts, H width of the input, O width of the output.

    Sizes were checked when the weights were read: an op is free to fail in any way on what does not fit.
    What each op computes, to the last digit: ops/numpy.py.
    """

    def constant(self, weight: Weight) -> T: ...
    def embed(self, table: T, ids: T) -> T: ...  # (V, H), (T,) -> (T, H)
    def add(self, a: T, b: T) -> T: ...
    def linear(self, x: T, weight: T, bias: T | None) -> T: ...  # (T, H), (O, H), (O,) -> (T, O)
    def layer_norm(self, x: T, weight: T, bias: T, eps: float) -> T: ...
    def activation(self, x: T, kind: Activation) -> T: ...
    def attention(self, q: T, k: T, v: T, tokens: Tokens[T], spec: AttentionSpec) -> T: ...  # (T, heads * head_size)
    def first(self, x: T, tokens: Tokens[T]) -> T: ...  # (T, H) -> (N, H), each text's first row
    def last(self, x: T, tokens: Tokens[T]) -> T: ...
    def mean(self, x: T, tokens: Tokens[T]) -> T: ...
