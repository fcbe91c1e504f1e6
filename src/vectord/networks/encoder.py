"""The only body of an encoder (BERT and its kin), written over ops on packed rows.

An architecture file fills in an EncoderSpec and EncoderWeights and returns an Encoder; a backend calls it on its
worker threads or, for a graph, once. Every activation is (T, H).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from vectord.networks.weights import Linear, Norm
from vectord.ops.base import Activation, AttentionSpec, Ops, T, Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSpec:
    """What the config says. H: hidden_size, F: intermediate_size."""

    vocab_size: int
    max_positions: int  # places in the table of learned positions
    type_vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    activation: Activation
    norm_eps: float

    @property
    def attention(self) -> AttentionSpec:
        return AttentionSpec(heads=self.heads, head_size=self.hidden_size // self.heads)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderLayer(Generic[T]):
    query: Linear[T]  # (H, H)
    key: Linear[T]  # (H, H)
    value: Linear[T]  # (H, H)
    attention_out: Linear[T]  # (H, H)
    attention_norm: Norm[T]
    up: Linear[T]  # (F, H)
    down: Linear[T]  # (H, F)
    output_norm: Norm[T]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderWeights(Generic[T]):
    words: T  # (vocab_size, H)
    positions: T  # (max_positions, H)
    types: T  # (type_vocab_size, H)
    norm: Norm[T]
    layers: tuple[EncoderLayer[T], ...]


class Encoder(Generic[T]):
    """Tokens to last hidden states."""

    def __init__(self, spec: EncoderSpec, weights: EncoderWeights[T], ops: Ops[T]) -> None:
        self.vocab_size = spec.vocab_size
        self.hidden_size = spec.hidden_size
        self.max_tokens = spec.max_positions
        self._spec = spec
        self._weights = weights
        self._ops = ops

    def __call__(self, tokens: Tokens[T]) -> T:
        """Returns (T, H)."""
        x = self._embed(tokens)
        for layer in self._weights.layers:
            x = self._layer(layer, x, tokens)
        return x

    def _embed(self, tokens: Tokens[T]) -> T:
        ops, weights = self._ops, self._weights
        x = ops.embed(weights.words, tokens.ids)
        x = ops.add(x, ops.embed(weights.positions, tokens.positions))
        x = ops.add(x, ops.embed(weights.types, tokens.type_ids))
        return self._norm(x, weights.norm)

    def _layer(self, layer: EncoderLayer[T], x: T, tokens: Tokens[T]) -> T:
        ops, spec = self._ops, self._spec
        q, k, v = (self._linear(x, part) for part in (layer.query, layer.key, layer.value))  # (T, H) each
        a = self._linear(ops.attention(q, k, v, tokens, spec.attention), layer.attention_out)
        x = self._norm(ops.add(x, a), layer.attention_norm)
        h = ops.activation(self._linear(x, layer.up), spec.activation)  # (T, F)
        return self._norm(ops.add(x, self._linear(h, layer.down)), layer.output_norm)

    def _linear(self, x: T, linear: Linear[T]) -> T:
        return self._ops.linear(x, linear.weight, linear.bias)

    def _norm(self, x: T, norm: Norm[T]) -> T:
        return self._ops.layer_norm(x, norm.weight, norm.bias, self._spec.norm_eps)
