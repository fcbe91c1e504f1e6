"""The only body of an encoder (BERT and its relatives), written over ops on packed rows.

An architecture file fills in an EncoderSpec and EncoderWeights and returns an EncoderBody; a backend calls it on its
worker threads or, for a graph, once. Every activation is (T, H). Differences of the family in positions, norms and
the MLP are values of the spec, or weights that may be None.

The second part reads configs and tensors: an architecture gives its config keys and tensor names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic

from vectord.compute.networks import facts
from vectord.compute.networks.heads import MaskedLM, Projection, output_words
from vectord.compute.networks.rotary import RotaryTable, Turns, turns
from vectord.compute.networks.weights import Linear, Norm, WeightReader
from vectord.compute.ops.base import Activation, AttentionSpec, Ops, T, Tokens

WORDS = "embeddings.word_embeddings.weight"


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
    attention_scale: float | None = None  # None: head_size ** -0.5

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
    place_k: T | None = None  # (B, H) relative places, as Ops.disentangled_attention takes them
    place_q: T | None = None  # (B, H)
    rotary: RotaryTable[T] | None = None
    window: int | None = None  # AttentionSpec.window


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderWeights(Generic[T]):
    words: T  # (vocab_size, H), or (vocab_size, E) with `widen`; positions and types alike
    positions: T | None = None  # (max_tokens, H)
    types: T | None = None  # (types, H)
    widen: Linear[T] | None = None  # (H, E) of their sum
    norm: Norm[T] | None  # of their sum
    layers: tuple[EncoderLayer[T], ...]
    final_norm: Norm[T] | None = None
    attention_bias: T | None = None  # (heads, 2 * max_tokens - 1) by distance, as Ops.attention takes it
    buckets: T | None = None  # (2 * max_tokens - 1,) for disentangled attention; None: attention is not disentangled


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
        x = x if weights.widen is None else self._linear(x, weights.widen)  # (T, H)
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
        attention = AttentionSpec(
            heads=spec.heads, head_size=spec.head_size, scale=spec.attention_scale, window=layer.window
        )
        buckets = self._weights.buckets
        if buckets is None:
            a = ops.attention(q, k, v, tokens, attention, self._weights.attention_bias)
        else:
            a = ops.disentangled_attention(q, k, v, layer.place_k, layer.place_q, buckets, tokens, attention)
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


def read_spec(
    config: Mapping[str, Any],
    *,
    keys: Mapping[str, str] | None = None,
    types: int = 0,
    activation: Activation | None = None,
    norm_eps: float | None = None,
    norm_first: bool = False,
) -> EncoderSpec:
    """Read BERT's keys, or those that `keys` has instead of them. Raises ModelUnavailable.

    activation, norm_eps: replace the config's. types: number of token types.
    """
    facts.require(config, "is_decoder", False)

    def key(name: str) -> str:
        return name if keys is None else keys.get(name, name)

    return EncoderSpec(
        vocab_size=facts.size(config, "vocab_size"),
        max_tokens=facts.size(config, key("max_position_embeddings")),
        hidden_size=facts.size(config, key("hidden_size")),
        intermediate_size=facts.size(config, key("intermediate_size")),
        layers=facts.size(config, key("num_hidden_layers"), at_most=1024),
        heads=facts.heads(config, key("num_attention_heads"), key("hidden_size")),
        activation=activation or facts.activation(config, key("hidden_act")),
        norm_eps=norm_eps or facts.epsilon(config, key("layer_norm_eps")),
        types=types,
        norm_first=norm_first,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNames:
    """The names of a layer's tensors after `prefix` and the layer's number. One name for several linears: stacked."""

    prefix: str
    attention: str | tuple[str, str, str]  # query, key, value
    attention_out: str
    attention_norm: str | None
    mlp: str | tuple[str] | tuple[str, str]  # up, and gate if there is one
    gate_first: bool = False  # the stack of `mlp` begins with the gate
    down: str
    output_norm: str
    query_norm: str | None = None
    key_norm: str | None = None
    input_norm: str | None = None
    attention_bias: bool = True
    mlp_bias: bool = True  # of up and gate
    down_bias: bool = True
    norm_bias: bool = True


# Names in transformers' classes of encoders with rotary positions and a gated MLP.
TRANSFORMERS_NAMES = LayerNames(
    prefix="layers",
    attention=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    attention_out="self_attn.o_proj",
    attention_norm="post_attention_layernorm",
    mlp=("mlp.up_proj", "mlp.gate_proj"),
    down="mlp.down_proj",
    output_norm="post_mlp_layernorm",
    mlp_bias=False,
)


def read_layer(
    spec: EncoderSpec,
    weights: WeightReader[T],
    names: LayerNames,
    i: int,
    *,
    rotary: RotaryTable[T] | None = None,
    window: int | None = None,
) -> EncoderLayer[T]:
    """Return the i-th layer. Raises ModelUnavailable."""
    width, between = spec.hidden_size, spec.intermediate_size
    layer = weights.under(f"{names.prefix}.{i}.")
    query, key, value = layer.linears(names.attention, width, width, 3, bias=names.attention_bias)
    up, *gate = layer.linears(names.mlp, width, between, 2, bias=names.mlp_bias)
    if names.gate_first:
        up, gate = gate[0], [up]

    def norm(name: str | None) -> Norm[T] | None:
        return None if name is None else layer.norm(name, width, bias=names.norm_bias)

    return EncoderLayer(
        query=query,
        key=key,
        value=value,
        query_norm=norm(names.query_norm),
        key_norm=norm(names.key_norm),
        attention_out=layer.linear(names.attention_out, width, width, bias=names.attention_bias),
        attention_norm=norm(names.attention_norm),
        input_norm=norm(names.input_norm),
        up=up,
        gate=gate[0] if gate else None,
        down=layer.linear(names.down, between, width, bias=names.down_bias),
        output_norm=layer.norm(names.output_norm, width, bias=names.norm_bias),
        rotary=rotary,
        window=window,
    )


def read_encoder(
    spec: EncoderSpec,
    weights: WeightReader[T],
    ops: Ops[T],
    names: LayerNames,
    *,
    first_position: int | None = None,
    norm: str = "embeddings.LayerNorm",
    rotary: RotaryTable[T] | None = None,
    attention_bias: T | None = None,
) -> EncoderBody[T]:
    """Return an encoder with BERT's names of the embeddings. Raises ModelUnavailable.

    first_position: the first token's row in the table of positions; None: there is no table.
    """
    width, positions = spec.hidden_size, None
    if first_position is not None:
        rows = slice(first_position, first_position + spec.max_tokens)
        positions = weights.tensor("embeddings.position_embeddings.weight", rows.stop, width, rows=rows)
    return EncoderBody(
        spec,
        EncoderWeights(
            words=weights.tensor(WORDS, spec.vocab_size, width),
            positions=positions,
            types=weights.tensor("embeddings.token_type_embeddings.weight", spec.types, width) if spec.types else None,
            norm=weights.norm(norm, width),
            layers=tuple(read_layer(spec, weights, names, i, rotary=rotary) for i in range(spec.layers)),
            attention_bias=attention_bias,
        ),
        ops,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadNames:
    """The names of a masked-language head's tensors."""

    dense: str
    norm: str
    decoder: str
    bias: str | None = None  # another name of the decoder's bias, in some checkpoints


def read_masked_lm(
    config: Mapping[str, Any],
    spec: EncoderSpec,
    weights: WeightReader[T],
    body: WeightReader[T],
    names: HeadNames,
    activation: Activation | None = None,
) -> MaskedLM[T]:
    """Return the head. activation: None: the body's. Raises ModelUnavailable."""
    width = spec.hidden_size
    dense, norm = weights.linear(names.dense, width, width), weights.norm(names.norm, width)
    bias = f"{names.decoder}.bias"
    return MaskedLM(
        transform=Projection(dense, activation or spec.activation, norm, spec.norm_eps),
        words=output_words(config, weights, f"{names.decoder}.weight", body, WORDS, (spec.vocab_size, width)),
        bias=weights.tensor(weights.first_of(bias, names.bias or bias), spec.vocab_size),
    )
