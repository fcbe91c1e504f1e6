"""The only body of an encoder (BERT and its relatives), written over ops on packed rows.

An architecture file fills in an EncoderSpec and EncoderWeights and returns an EncoderBody; a backend calls it on its
worker threads or, for a graph, once. Every activation is (T, H). Differences of the family in positions, norms and
the MLP are values of the spec, or weights that may be None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from vectord.compute.networks.rotary import RotaryTable, Turns, turns
from vectord.compute.networks.weights import Linear, Norm
from vectord.compute.ops.base import Activation, AttentionSpec, Ops, T, Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSpec:
    """Values of the config. H: hidden_size, F: intermediate_size."""

    vocab_size: int
    max_tokens: int  # number of positions
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    activation: Activation
    norm_eps: float
    types: int = 0  # token types, such as first and second text of a pair
    norm_first: bool = False  # norms come before attention and MLP, not after the sum

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.heads


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderLayer(Generic[T]):
    query: Linear[T]  # (H, H)
    key: Linear[T]  # (H, H)
    value: Linear[T]  # (H, H)
    attention_out: Linear[T]  # (H, H)
    attention_norm: Norm[T] | None  # None: this layer has none
    input_norm: Norm[T] | None = None  # of the sum of that norm's output and the layer's input
    up: Linear[T]  # (F, H)
    gate: Linear[T] | None = None  # (F, H) its activation multiplies the output of `up`; None: `up` is activated
    down: Linear[T]  # (H, F)
    output_norm: Norm[T]
    query_norm: Norm[T] | None = None
    key_norm: Norm[T] | None = None
    rotary: RotaryTable[T] | None = None
    window: int | None = None  # AttentionSpec.window


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderWeights(Generic[T]):
    words: T  # (vocab_size, H)
    positions: T | None = None  # (max_tokens, H)
    types: T | None = None  # (types, H)
    norm: Norm[T] | None  # of their sum
    layers: tuple[EncoderLayer[T], ...]
    final_norm: Norm[T] | None = None
    attention_bias: T | None = None  # (heads, 2 * max_tokens - 1) by distance, as Ops.attention takes it


class EncoderBody(Generic[T]):
    """Tokens to last hidden states."""

    causal = False

    def __init__(self, spec: EncoderSpec, weights: EncoderWeights[T], ops: Ops[T]) -> None:
        self.hidden_size = spec.hidden_size
        self.max_tokens = spec.max_tokens
        self._spec = spec
        self._weights = weights
        self._ops = ops

    def __call__(self, tokens: Tokens[T]) -> T:
        """Returns (T, H)."""
        x = self._embed(tokens)
        tables = {id(layer.rotary): layer.rotary for layer in self._weights.layers if layer.rotary is not None}
        turned = {key: turns(self._ops, table, tokens) for key, table in tables.items()}
        for layer in self._weights.layers:
            x = self._layer(layer, x, tokens, turned.get(id(layer.rotary)))
        return x if self._weights.final_norm is None else self._norm(x, self._weights.final_norm)

    def _embed(self, tokens: Tokens[T]) -> T:
        ops, weights = self._ops, self._weights
        x = ops.embed(weights.words, tokens.ids)
        if weights.positions is not None:
            x = ops.add(x, ops.embed(weights.positions, tokens.positions))
        if weights.types is not None:
            # A model with one type gives it to every token: the table has no second row.
            only = self._spec.types == 1
            x = ops.add(x, weights.types if only else ops.embed(weights.types, tokens.type_ids))
        return x if weights.norm is None else self._norm(x, weights.norm)

    def _layer(self, layer: EncoderLayer[T], x: T, tokens: Tokens[T], turned: Turns[T] | None) -> T:
        if self._spec.norm_first:
            h = x if layer.attention_norm is None else self._norm(x, layer.attention_norm)
            x = self._ops.add(x, self._attend(layer, h, tokens, turned))
            return self._ops.add(x, self._between(layer, self._norm(x, layer.output_norm)))
        h = self._ops.add(x, self._attend(layer, x, tokens, turned))
        h = h if layer.attention_norm is None else self._norm(h, layer.attention_norm)
        x = h if layer.input_norm is None else self._norm(self._ops.add(x, h), layer.input_norm)
        return self._norm(self._ops.add(x, self._between(layer, x)), layer.output_norm)

    def _attend(self, layer: EncoderLayer[T], x: T, tokens: Tokens[T], turned: Turns[T] | None) -> T:
        ops, spec = self._ops, self._spec
        q, k, v = (self._linear(x, part) for part in (layer.query, layer.key, layer.value))  # (T, H) each
        q = q if layer.query_norm is None else self._norm(q, layer.query_norm)
        k = k if layer.key_norm is None else self._norm(k, layer.key_norm)
        if turned is not None:
            q, k = (ops.rotate(x, turned.cos, turned.sin, spec.head_size) for x in (q, k))
        attention = AttentionSpec(heads=spec.heads, head_size=spec.head_size, window=layer.window)
        a = ops.attention(q, k, v, tokens, attention, self._weights.attention_bias)
        return self._linear(a, layer.attention_out)

    def _between(self, layer: EncoderLayer[T], x: T) -> T:
        ops, kind = self._ops, self._spec.activation
        h = self._linear(x, layer.up)  # (T, F)
        if layer.gate is None:
            h = ops.activation(h, kind)
        else:
            h = ops.multiply(ops.activation(self._linear(x, layer.gate), kind), h)
        return self._linear(h, layer.down)

    def _linear(self, x: T, linear: Linear[T]) -> T:
        return self._ops.linear(x, linear.weight, linear.bias)

    def _norm(self, x: T, norm: Norm[T]) -> T:
        return self._ops.layer_norm(x, norm.weight, norm.bias, self._spec.norm_eps)
