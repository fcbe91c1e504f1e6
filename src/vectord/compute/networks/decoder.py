"""The only body of a decoder (Qwen, Mistral, Gemma), written over ops on packed rows.

An architecture file fills in a DecoderSpec and DecoderWeights and returns a DecoderBody; a backend calls it on its
worker threads or, for a graph, once. Every activation is (T, H). RMS norms come before each half of a layer, positions
are rotary, and the MLP is gated. Nothing is generated, so there is no cache of keys.

The second part reads configs and tensors in the form of Llama, the first of the family.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Generic

import numpy as np

from vectord.compute.networks import facts
from vectord.compute.networks.heads import Classifier, Projection
from vectord.compute.networks.rotary import (
    Rotary,
    RotaryTable,
    Turns,
    read_plain_rotary,
    rotary_table,
    turns,
)
from vectord.compute.networks.weights import Linear, WeightReader
from vectord.compute.ops.base import Activation, AttentionSpec, Ops, T, Tokens
from vectord.errors import ModelUnavailable

WORDS = "embed_tokens.weight"
PREFIXES = ("", "model.")  # of a bare model, and of one under a head


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """Values of the config. H: hidden_size, F: intermediate_size, Q: heads * head_size, K: kv_heads * head_size."""

    vocab_size: int
    max_tokens: int  # number of positions
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    activation: Activation
    norm_eps: float
    causal: bool = True
    attention_scale: float | None = None  # None: head_size ** -0.5
    word_scale: float = 1.0  # factor of the word vectors

    @property
    def query_width(self) -> int:
        return self.heads * self.head_size

    @property
    def key_width(self) -> int:
        return self.kv_heads * self.head_size


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderLayer(Generic[T]):
    attention_norm: T  # (H,)
    query: Linear[T]  # (Q, H)
    key: Linear[T]  # (K, H)
    value: Linear[T]  # (K, H)
    query_norm: T | None = None  # (head_size,)
    key_norm: T | None = None  # (head_size,)
    attention_out: Linear[T]  # (H, Q)
    attention_out_norm: T | None = None  # (H,) of what attention adds
    between_norm: T  # (H,)
    gate: Linear[T]  # (F, H)
    up: Linear[T]  # (F, H)
    down: Linear[T]  # (H, F)
    between_out_norm: T | None = None  # (H,) of what the layer in between adds
    rotary: RotaryTable[T]
    window: int | None = None  # AttentionSpec.window


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderWeights(Generic[T]):
    words: T  # (vocab_size, H)
    layers: tuple[DecoderLayer[T], ...]
    final_norm: T  # (H,)


class DecoderBody(Generic[T]):
    """Tokens to last hidden states."""

    def __init__(self, spec: DecoderSpec, weights: DecoderWeights[T], ops: Ops[T]) -> None:
        self.hidden_size = spec.hidden_size
        self.max_tokens = spec.max_tokens
        self.causal = spec.causal
        self._spec = spec
        self._weights = weights
        self._ops = ops

    def __call__(self, tokens: Tokens[T]) -> T:
        """Returns (T, H)."""
        ops, weights = self._ops, self._weights
        x = ops.embed(weights.words, tokens.ids)
        x = x if self._spec.word_scale == 1.0 else ops.scale(x, self._spec.word_scale)
        tables = {id(layer.rotary): layer.rotary for layer in weights.layers}
        turned = {key: turns(ops, table, tokens) for key, table in tables.items()}
        for layer in weights.layers:
            x = ops.add(x, self._attend(layer, self._norm(x, layer.attention_norm), tokens, turned[id(layer.rotary)]))
            x = ops.add(x, self._between(layer, self._norm(x, layer.between_norm)))
        return self._norm(x, weights.final_norm)

    def _attend(self, layer: DecoderLayer[T], x: T, tokens: Tokens[T], turned: Turns[T]) -> T:
        ops, spec = self._ops, self._spec
        q, k, v = (self._linear(x, part) for part in (layer.query, layer.key, layer.value))
        q = q if layer.query_norm is None else self._norm(q, layer.query_norm)
        k = k if layer.key_norm is None else self._norm(k, layer.key_norm)
        q, k = (ops.rotate(x, turned.cos, turned.sin, spec.head_size) for x in (q, k))
        attention = AttentionSpec(
            heads=spec.heads,
            head_size=spec.head_size,
            kv_heads=spec.kv_heads,
            scale=spec.attention_scale,
            causal=spec.causal,
            window=layer.window,
        )
        a = self._linear(ops.attention(q, k, v, tokens, attention), layer.attention_out)
        return a if layer.attention_out_norm is None else self._norm(a, layer.attention_out_norm)

    def _between(self, layer: DecoderLayer[T], x: T) -> T:
        ops = self._ops
        gate = ops.activation(self._linear(x, layer.gate), self._spec.activation)
        h = self._linear(ops.multiply(gate, self._linear(x, layer.up)), layer.down)
        return h if layer.between_out_norm is None else self._norm(h, layer.between_out_norm)

    def _linear(self, x: T, linear: Linear[T]) -> T:
        return self._ops.linear(x, linear.weight, linear.bias)

    def _norm(self, x: T, weight: T) -> T:
        return self._ops.rms_norm(x, weight, self._spec.norm_eps)


def read_spec(config: Mapping[str, Any], *, activation_key: str = "hidden_act") -> DecoderSpec:
    """Raises ModelUnavailable."""
    heads = facts.size(config, "num_attention_heads")
    kv_heads = facts.size(config, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise ModelUnavailable(
            f"config.json: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}"
        )
    return DecoderSpec(
        vocab_size=facts.size(config, "vocab_size"),
        max_tokens=facts.size(config, "max_position_embeddings"),
        hidden_size=facts.size(config, "hidden_size"),
        intermediate_size=facts.size(config, "intermediate_size"),
        layers=facts.size(config, "num_hidden_layers", at_most=1024),
        heads=heads,
        kv_heads=kv_heads,
        head_size=_head_size(config),
        activation=facts.activation(config, activation_key),
        norm_eps=facts.epsilon(config, "rms_norm_eps"),
        # transformers reads the first; some classes of model repositories over its decoders read the second.
        causal=facts.flag(config, "is_causal", True) and not facts.flag(config, "use_bidirectional_attention", False),
    )


def _head_size(config: Mapping[str, Any]) -> int:
    if config.get("head_dim") is not None:
        return facts.size(config, "head_dim")
    return facts.size(config, "hidden_size") // facts.heads(config, "num_attention_heads", "hidden_size")


def read_decoder_rotary(config: Mapping[str, Any], spec: DecoderSpec) -> Rotary:
    """The rotation of Qwen's and Mistral's layers. Raises ModelUnavailable."""
    return read_plain_rotary(config, theta=10_000.0, positions=spec.max_tokens)


def read_window(config: Mapping[str, Any], *, causal: bool) -> int:
    """AttentionSpec.window of a layer that slides. Raises ModelUnavailable.

    Causal attention includes a token itself in its sliding_window, bidirectional attention does not
    (transformers/masking_utils.py).
    """
    size = facts.size(config, "sliding_window")
    return size - 1 if causal else size


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Options in which the layers of Qwen, Mistral and Gemma differ."""

    qkv_bias: bool = False
    out_bias: bool = False
    head_norms: bool = False  # an RMS norm of each head's query and key
    windows: tuple[int | None, ...]  # AttentionSpec.window of each layer
    rotary: Rotary
    sliding_rotary: Rotary | None = None  # of layers with a window; None: the same
    outer_norms: bool = False  # norms also after each half of a layer
    norm_offset: float = 0.0  # added to the stored weights of norms


def load_decoder(spec: DecoderSpec, family: Family, weights: WeightReader[T], ops: Ops[T]) -> DecoderBody[T]:
    """Return a decoder with Llama's names. Raises ModelUnavailable."""
    weights = weights.after_prefix(PREFIXES, WORDS)
    full = sliding = rotary_table(weights, family.rotary, spec.head_size, spec.max_tokens)
    if family.sliding_rotary is not None:
        sliding = rotary_table(weights, family.sliding_rotary, spec.head_size, spec.max_tokens)
    return DecoderBody(
        spec,
        DecoderWeights(
            words=weights.tensor(WORDS, spec.vocab_size, spec.hidden_size),
            layers=tuple(
                _layer(spec, family, weights.under(f"layers.{i}."), full if window is None else sliding, window)
                for i, window in enumerate(family.windows)
            ),
            final_norm=_norm(family, weights, "norm", spec.hidden_size),
        ),
        ops,
    )


def _layer(
    spec: DecoderSpec, family: Family, weights: WeightReader[T], rotary: RotaryTable[T], window: int | None
) -> DecoderLayer[T]:
    width, inner, bias = spec.hidden_size, spec.intermediate_size, family.qkv_bias

    def norm(name: str, size: int = width) -> T:
        return _norm(family, weights, name, size)

    return DecoderLayer(
        attention_norm=norm("input_layernorm"),
        query=weights.linear("self_attn.q_proj", width, spec.query_width, bias=bias),
        key=weights.linear("self_attn.k_proj", width, spec.key_width, bias=bias),
        value=weights.linear("self_attn.v_proj", width, spec.key_width, bias=bias),
        query_norm=norm("self_attn.q_norm", spec.head_size) if family.head_norms else None,
        key_norm=norm("self_attn.k_norm", spec.head_size) if family.head_norms else None,
        attention_out=weights.linear("self_attn.o_proj", spec.query_width, width, bias=family.out_bias),
        attention_out_norm=norm("post_attention_layernorm") if family.outer_norms else None,
        between_norm=norm("pre_feedforward_layernorm" if family.outer_norms else "post_attention_layernorm"),
        gate=weights.linear("mlp.gate_proj", width, inner, bias=False),
        up=weights.linear("mlp.up_proj", width, inner, bias=False),
        down=weights.linear("mlp.down_proj", inner, width, bias=False),
        between_out_norm=norm("post_feedforward_layernorm") if family.outer_norms else None,
        rotary=rotary,
        window=window,
    )


def _norm(family: Family, weights: WeightReader[T], name: str, width: int) -> T:
    name = f"{name}.weight"
    if not family.norm_offset:
        return weights.tensor(name, width)
    return weights.constant(name, family.norm_offset + weights.array(name, width))


def classifier(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], labels: int) -> Classifier[T]:
    """Return the head of ...ForSequenceClassification. Raises ModelUnavailable."""
    score = weights.tensor("score.weight", labels, facts.size(config, "hidden_size"))
    return Classifier("last", (Projection(Linear(score, None)),))


def head_rows(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], ids: Sequence[int]) -> T:
    """(len(ids), H): the rows of the language model's head for these words. Raises ModelUnavailable.

    Each row is read separately and moved to its place by a product with ones and zeros, so that the rest of a table of
    about 300 MB is not read.
    """
    shape = facts.size(config, "vocab_size"), facts.size(config, "hidden_size")
    if max(ids) >= shape[0]:
        raise ModelUnavailable(f"config.json: vocab_size {shape[0]} has no word {max(ids)}")
    name = "lm_head.weight"
    if facts.flag(config, "tie_word_embeddings", False):
        weights, name = weights.after_prefix(PREFIXES, WORDS), WORDS
    places = np.eye(len(ids), dtype=np.float32)
    rows = (
        ops.multiply(
            weights.constant("place", places[:, i : i + 1]), weights.tensor(name, *shape, rows=slice(w, w + 1))
        )
        for i, w in enumerate(ids)
    )
    return reduce(ops.add, rows)
