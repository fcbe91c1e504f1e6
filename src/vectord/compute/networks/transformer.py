"""The only body: a transformer over packed rows, for encoders (BERT, T5 and others) and decoders (Llama, Qwen, Gemma).

An architecture file fills in a TransformerSpec and TransformerWeights and returns a Transformer; a backend calls it on
its worker threads or, for a graph, once. Every activation is (T, H). Differences in positions, norms and the MLP are
values of the spec, or weights that may be None. Nothing is generated, so there is no cache of keys.

encoder.py and decoder.py read configs and tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic

from vectord.compute.networks.rotary import Turns, turns_of
from vectord.compute.networks.weights import Linear, Norm
from vectord.compute.ops.base import Activation, AttentionSpec, Ops, T, Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerSpec:
    """Values of the config. H: hidden_size, F: intermediate_size, Q: query_width, K: key_width."""

    vocab_size: int
    max_tokens: int  # number of positions
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int | None = None  # AttentionSpec.kv_heads
    head_size: int
    activation: Activation
    norm_eps: float
    types: int = 0  # token types, such as first and second text of a pair
    causal: bool = False
    rms: bool = False  # norms divide by the root of the mean square; False: layer norms
    norm_first: bool = False  # norms come before attention and MLP, not after the sum
    attention_scale: float | None = None  # None: head_size ** -0.5
    word_scale: float = 1.0  # factor of the word vectors

    @property
    def query_width(self) -> int:
        return self.heads * self.head_size

    @property
    def key_width(self) -> int:
        return (self.kv_heads or self.heads) * self.head_size


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerLayer(Generic[T]):
    query: Linear[T]  # (Q, H)
    key: Linear[T]  # (K, H)
    value: Linear[T]  # (K, H)
    query_norm: Norm[T] | None = None  # (Q,), or (head_size,) of each head
    key_norm: Norm[T] | None = None
    attention_out: Linear[T]  # (H, Q)
    attention_out_norm: Norm[T] | None = None  # of what attention adds
    attention_norm: Norm[T] | None  # None: this layer has none
    input_norm: Norm[T] | None = None  # of the sum of that norm's output and the layer's input
    up: Linear[T]  # (F, H)
    gate: Linear[T] | None = None  # (F, H) its activation multiplies the output of `up`; None: `up` is activated
    down: Linear[T]  # (H, F)
    down_norm: Norm[T] | None = None  # of what the MLP adds
    output_norm: Norm[T]  # after the MLP's sum, or before the MLP with norm_first
    place_k: T | None = None  # (B, H) relative places, as Ops.disentangled_attention takes them
    place_q: T | None = None  # (B, H)
    rotary: Turns[T] | None = None
    query_rotary: Turns[T] | None = None  # of queries only; None: the same
    window: int | None = None  # AttentionSpec.window


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerWeights(Generic[T]):
    words: T  # (vocab_size, H), or (vocab_size, E) with `widen`; positions and types alike
    positions: T | None = None  # (max_tokens, H)
    types: T | None = None  # (types, H)
    norm: Norm[T] | None = None  # of their sum
    widen: Linear[T] | None = None  # (H, E) after that norm
    wide_norm: Norm[T] | None = None  # after `widen`
    layers: tuple[TransformerLayer[T], ...]
    final_norm: Norm[T] | None = None
    attention_bias: T | None = None  # (heads, 2 * max_tokens - 1) by distance, as Ops.attention takes it
    buckets: T | None = None  # (2 * max_tokens - 1,) for disentangled attention; None: attention is not disentangled


class Transformer(Generic[T]):
    """Tokens to last hidden states."""

    def __init__(self, spec: TransformerSpec, weights: TransformerWeights[T], ops: Ops[T]) -> None:
        self.hidden_size = spec.hidden_size
        self.max_tokens = spec.max_tokens  # of one text
        self.causal = spec.causal  # no token attends to later ones
        self._spec = spec
        self._weights = weights
        self._ops = ops

    def __call__(self, tokens: Tokens[T]) -> T:
        """Returns (T, H)."""
        x = self._embed(tokens)
        tables = {id(table): table for layer in self._weights.layers for table in (layer.rotary, layer.query_rotary)}
        turned = {key: turns_of(self._ops, table, tokens) for key, table in tables.items() if table is not None}
        for layer in self._weights.layers:
            x = self._layer(layer, x, tokens, turned)
        return self._norm(x, self._weights.final_norm)

    def _embed(self, tokens: Tokens[T]) -> T:
        ops, weights = self._ops, self._weights
        x = ops.embed(weights.words, tokens.ids)
        x = x if self._spec.word_scale == 1.0 else ops.scale(x, self._spec.word_scale)
        if weights.positions is not None:
            x = ops.add(x, ops.embed(weights.positions, tokens.positions))
        if weights.types is not None:
            # A model with one type gives it to every token: the table has no second row.
            only = self._spec.types == 1
            x = ops.add(x, weights.types if only else ops.embed(weights.types, tokens.type_ids))
        x = self._norm(x, weights.norm)
        x = x if weights.widen is None else self._linear(x, weights.widen)  # (T, H)
        return self._norm(x, weights.wide_norm)

    def _layer(self, layer: TransformerLayer[T], x: T, tokens: Tokens[T], turned: Mapping[int, Turns[T]]) -> T:
        if self._spec.norm_first:
            x = self._ops.add(x, self._attend(layer, self._norm(x, layer.attention_norm), tokens, turned))
            return self._ops.add(x, self._between(layer, self._norm(x, layer.output_norm)))
        h = self._norm(self._ops.add(x, self._attend(layer, x, tokens, turned)), layer.attention_norm)
        x = h if layer.input_norm is None else self._norm(self._ops.add(x, h), layer.input_norm)
        return self._norm(self._ops.add(x, self._between(layer, x)), layer.output_norm)

    def _attend(self, layer: TransformerLayer[T], x: T, tokens: Tokens[T], turned: Mapping[int, Turns[T]]) -> T:
        """turned: by the id of a layer's table."""
        ops, spec = self._ops, self._spec
        q, k, v = (self._linear(x, part) for part in (layer.query, layer.key, layer.value))  # (T, Q), (T, K), (T, K)
        q, k = self._norm(q, layer.query_norm), self._norm(k, layer.key_norm)
        if layer.rotary is not None:
            of_queries, of_keys = turned[id(layer.query_rotary or layer.rotary)], turned[id(layer.rotary)]
            q = ops.rotate(q, of_queries.cos, of_queries.sin, spec.head_size)
            k = ops.rotate(k, of_keys.cos, of_keys.sin, spec.head_size)
        attention = AttentionSpec(
            heads=spec.heads,
            head_size=spec.head_size,
            kv_heads=spec.kv_heads,
            scale=spec.attention_scale,
            causal=spec.causal,
            window=layer.window,
        )
        buckets = self._weights.buckets
        if buckets is None:
            a = ops.attention(q, k, v, tokens, attention, self._weights.attention_bias)
        else:
            a = ops.disentangled_attention(q, k, v, layer.place_k, layer.place_q, buckets, tokens, attention)
        return self._norm(self._linear(a, layer.attention_out), layer.attention_out_norm)

    def _between(self, layer: TransformerLayer[T], x: T) -> T:
        ops, kind = self._ops, self._spec.activation
        h = self._linear(x, layer.up)  # (T, F)
        if layer.gate is None:
            h = ops.activation(h, kind)
        else:
            h = ops.multiply(ops.activation(self._linear(x, layer.gate), kind), h)
        return self._norm(self._linear(h, layer.down), layer.down_norm)

    def _linear(self, x: T, linear: Linear[T]) -> T:
        return self._ops.linear(x, linear.weight, linear.bias)

    def _norm(self, x: T, norm: Norm[T] | None) -> T:
        """`x` itself without a norm."""
        if norm is None:
            return x
        if self._spec.rms:
            return self._ops.rms_norm(x, norm.weight, self._spec.norm_eps)
        return self._ops.layer_norm(x, norm.weight, norm.bias, self._spec.norm_eps)
