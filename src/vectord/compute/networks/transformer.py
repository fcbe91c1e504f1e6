"""The only body: a transformer over packed rows, for encoders (BERT, T5 and others) and decoders (Llama, Qwen, Gemma).

An architecture file fills in a TransformerSpec and TransformerWeights and returns a Transformer; a backend calls it on
its worker threads or, for a graph, once. Every activation is (T, H). Differences in positions, norms and the MLP are
values of the spec, or weights that may be None. Nothing is generated, so there is no cache of keys.

encoder.py and decoder.py read configs and tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial, reduce
from typing import Generic

import msgspec

from vectord.compute.networks.adapters import LowRank
from vectord.compute.networks.planes import Plane, ScaledGrid
from vectord.compute.networks.rotary import CosSin, cos_sin_of
from vectord.compute.networks.weights import Linear, Norm
from vectord.compute.ops.base import Activation, AttentionSpec, Ops, T, Tokens, Window


class TransformerSpec(msgspec.Struct, frozen=True, kw_only=True):
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
    score_cap: float | None = None  # AttentionSpec.score_cap
    word_scale: float = 1.0  # factor of the word vectors
    residual_scale: float = 1.0  # factor of what attention and the MLP add
    output_size: int | None = None  # of TransformerWeights.projection

    @property
    def query_width(self) -> int:
        return self.heads * self.head_size

    @property
    def key_width(self) -> int:
        return (self.kv_heads or self.heads) * self.head_size


class Attention(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    query: Linear[T]  # (Q, H)
    key: Linear[T]  # (K, H)
    value: Linear[T]  # (K, H)
    out: Linear[T]  # (H, Q)
    query_norm: Norm[T] | None = None  # a layer norm (Q,), or an RMS norm (head_size,) of each head
    key_norm: Norm[T] | None = None
    value_norm: Norm[T] | None = None
    head_size: int | None = None  # None: as in the spec, and the same for kv_heads
    kv_heads: int | None = None
    place_k: T | None = None  # (B, H) relative places, as Ops.disentangled_attention takes them
    place_q: T | None = None  # (B, H)
    rotary: CosSin[T] | None = None
    query_rotary: CosSin[T] | None = None  # of queries only; None: the same
    window: Window | None = None  # AttentionSpec.window, and window_after
    window_after: int | None = None

    @property
    def inputs(self) -> tuple[Linear[T], Linear[T], Linear[T]]:
        return self.query, self.key, self.value


class ShortConvolution(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """LFM2's: each number of a token is mixed with the same number of its nearest neighbours."""

    before: Linear[T]  # (H, H) its output multiplies the input of the convolution
    after: Linear[T]  # (H, H) the result of the convolution
    value: Linear[T]  # (H, H)
    taps: tuple[tuple[int, T], ...]  # offset of a neighbour, and (1, H) its weights
    bias: T | None  # (1, H)
    out: Linear[T]  # (H, H)


class Convolution(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """DeBERTa's, over the tokens' first states: what it makes of them is added to the first layer's result."""

    taps: tuple[tuple[int, Linear[T]], ...]  # offset of a neighbour, and (H, H) its layer
    activation: Activation
    norm: Norm[T]  # of the sum


class Mlp(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    up: Linear[T]  # (F, H)
    gate: Linear[T] | None = None  # (F, H) its activation multiplies the output of `up`; None: `up` is activated
    down: Linear[T]  # (H, F)


class Mixture(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """Several MLPs, of which each token takes the best `top`. Ops.mixture"""

    router: Linear[T]  # (E, H)
    experts: tuple[Mlp[T], ...]  # E
    top: int
    bias: T | None  # (1, H) of their sum


class WordGate(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """The third part of EmbeddingGemma 2's layers: a narrow MLP, gated by the token's word vector."""

    words: Linear[T]  # (G, H)
    words_norm: Norm[T]  # of that, divided by the root of H
    inner: Linear[T]  # (G, H)
    out: Linear[T]  # (H, G)
    out_norm: Norm[T]


class TransformerLayer(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    attention: Attention[T] | ShortConvolution[T]
    attention_out_norm: Norm[T] | None = None  # of what attention adds
    attention_norm: Norm[T] | None  # None: this layer has none
    input_norm: Norm[T] | None = None  # of the sum of that norm's output and the layer's input
    mlp: Mlp[T] | Mixture[T]
    mlp_out_norm: Norm[T] | None = None  # of what the MLP adds
    output_norm: Norm[T]  # after the MLP's sum, or before the MLP with norm_first
    word_gate: WordGate[T] | None = None  # only with norm_first
    scale: float = 1.0  # of the layer's result

    @property
    def linears(self) -> list[Linear[T]]:
        parts, mlp = self.attention, self.mlp
        if isinstance(parts, Attention):
            found = [parts.query, parts.key, parts.value, parts.out]
        else:
            found = [parts.before, parts.after, parts.value, parts.out]
        found += [mlp.router] if isinstance(mlp, Mixture) else [mlp.up, mlp.down]
        found += [] if self.word_gate is None else [self.word_gate.words, self.word_gate.inner, self.word_gate.out]
        return found if isinstance(mlp, Mixture) or mlp.gate is None else [*found, mlp.gate]


class TransformerWeights(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    # (vocab_size, H), or (vocab_size, E) with `widen`; positions and types alike. Of images also their positions
    words: T | Plane[T] | ScaledGrid[T] | None  # None: rows have their patches alone
    positions: T | None = None  # (max_tokens, H)
    types: T | None = None  # (types, H)
    words_change: LowRank[T] | None = None  # by adapters, as that of a Linear
    types_change: T | None = None  # (adapters + 1, H) what each adapter adds to the only row of `types`
    patches: Patches[T] | None = None  # None: features are rows of type 1, in place of words
    keeps_features: bool = False  # whether all layers attend to the features of those rows, unchanged
    added_features: int = 0  # after so many of the first layers, the next H columns of the features are added
    taps: tuple[int, ...] = ()  # layers whose results are further columns of the last one
    norm: Norm[T] | None = None  # of their sum
    widen: Linear[T] | None = None  # (H, E) after that norm
    wide_norm: Norm[T] | None = None  # after `widen`
    layers: tuple[TransformerLayer[T], ...]
    convolution: Convolution[T] | None = None  # only without norm_first
    final_norm: Norm[T] | None = None
    projection: Linear[T] | None = None  # (D, H) after that norm
    attention_bias: T | None = None  # (heads, 2 * max_tokens - 1) by distance, as Ops.attention takes it
    buckets: T | None = None  # (2 * max_tokens - 1,) for disentangled attention; None: attention is not disentangled


class Patches(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """The embedding of rows with features, which is added to that of their ids."""

    scale: T  # (1, W) of the features, before `shift` is added
    shift: T  # (1, W)
    linear: Linear[T]  # (H, W)
    mask: T | None = None  # (vocab_size, 1) 1 for ids of rows with features, 0 for others; None: all rows have some


class LayerInputs(msgspec.Struct, Generic[T], frozen=True):
    """A batch, and what all layers share in it."""

    tokens: Tokens[T]
    rotations: Mapping[int, CosSin[T]]  # by the id of a layer's table
    gates: Mapping[int, T]  # (T, R) of each row, by the id of a LowRank's gates; empty: no row has an adapter


class Transformer(Generic[T]):
    def __init__(self, spec: TransformerSpec, weights: TransformerWeights[T], ops: Ops[T]) -> None:
        self.hidden_size = spec.output_size or spec.hidden_size
        self.max_tokens = spec.max_tokens  # of one text
        # Whether texts may have a common beginning that is computed once.
        mixers = [each.attention for each in weights.layers]
        self.shares_prefix = spec.causal and all(
            isinstance(each, Attention) and (each.rotary is None or each.rotary.long is None) for each in mixers
        )
        self._spec = spec
        self._weights = weights
        self._ops = ops
        for layer in weights.layers:
            if isinstance(layer.attention, Attention):
                ops.join([(each.weight, each.bias) for each in layer.attention.inputs])
            if isinstance(layer.mlp, Mlp) and layer.mlp.gate is not None:
                ops.join([(each.weight, each.bias) for each in (layer.mlp.gate, layer.mlp.up)])

    def __call__(self, tokens: Tokens[T]) -> T:
        """Returns (T, H), or (T, D)."""
        attentions = [each.attention for each in self._weights.layers if isinstance(each.attention, Attention)]
        tables = {id(table): table for each in attentions for table in (each.rotary, each.query_rotary)}
        rotations = {key: cos_sin_of(self._ops, table, tokens) for key, table in tables.items() if table is not None}
        batch = LayerInputs(tokens, rotations, self._gates(tokens))
        x = words = self._embed(batch)
        addend: T | None = None  # of the last layer, which the norm of the next one adds
        tapped: list[T] = []
        for i, layer in enumerate(self._weights.layers):
            x, addend = self._layer(layer, x, addend, batch)
            if i == 0 and self._weights.convolution is not None:
                x = self._convolved(self._weights.convolution, x, words, batch)
            if addend is not None and (layer.word_gate is not None or layer.scale != 1.0):
                x, addend = self._ops.add(x, addend), None
            if layer.word_gate is not None:
                x = self._ops.add(x, self._gated(layer.word_gate, x, words, batch))
            x = x if layer.scale == 1.0 else self._ops.scale(x, layer.scale)
            if i < self._weights.added_features and tokens.features is not None:
                added = self._features(tokens.features, i + 1)
                addend = added if addend is None else self._ops.add(addend, added)
            if i in self._weights.taps:
                tapped.append(x if addend is None else self._ops.add(x, addend))
        x = self._norm_of_sum(x, addend, self._weights.final_norm)
        x = self._ops.concat([x, *tapped]) if tapped else x
        return x if self._weights.projection is None else self._linear(x, self._weights.projection, batch)

    def _gates(self, tokens: Tokens[T]) -> dict[int, T]:
        if tokens.adapters is None:
            return {}
        linears = [linear for layer in self._weights.layers for linear in layer.linears]
        linears += [each for each in (self._weights.widen, self._weights.projection) if each is not None]
        changes = [self._weights.words_change, *(linear.change for linear in linears)]
        tables = {id(change.gates): change.gates for change in changes if change is not None}
        return {key: self._ops.embed(table, tokens.adapters) for key, table in tables.items()}

    def _embed(self, batch: LayerInputs[T]) -> T:
        ops, weights, tokens = self._ops, self._weights, batch.tokens
        words, shown = weights.words, self._shown(batch)
        if words is None:
            assert shown is not None, "rows without patches"
            x, shown = shown, None
        else:
            x = words.of(ops, tokens) if isinstance(words, Plane | ScaledGrid) else ops.embed(words, tokens.ids)
        if weights.words_change is not None and batch.gates:
            x = self._changed(x, ops.embed(weights.words_change.down, tokens.ids), weights.words_change, batch)
        x = x if self._spec.word_scale == 1.0 else ops.scale(x, self._spec.word_scale)
        if weights.positions is not None:
            x = ops.add(x, ops.embed(weights.positions, tokens.positions))
        if weights.types is not None:
            # A model with one type gives it to every token: the table has no second row.
            only = self._spec.types == 1
            x = ops.add(x, weights.types if only else ops.embed(weights.types, tokens.type_ids))
        if weights.types_change is not None and tokens.adapters is not None:
            x = ops.add(x, ops.embed(weights.types_change, tokens.adapters))
        if shown is not None:
            x = ops.add(x, shown)
        elif tokens.features is not None and weights.patches is None:
            own = self._features(tokens.features, 0) if weights.added_features else tokens.features
            x = ops.place(x, own, tokens.type_ids)
        x = self._norm(x, weights.norm)
        x = x if weights.widen is None else self._linear(x, weights.widen, batch)  # (T, H)
        return self._norm(x, weights.wide_norm)

    def _shown(self, batch: LayerInputs[T]) -> T | None:
        """(T, H) the embedding of the rows' patches; None for rows without."""
        ops, tokens, patches = self._ops, batch.tokens, self._weights.patches
        if patches is None or tokens.features is None:
            return None
        pixels = ops.add(ops.multiply(tokens.features, patches.scale), patches.shift)
        shown = self._linear(pixels, patches.linear, batch)
        return shown if patches.mask is None else ops.multiply(shown, ops.embed(patches.mask, tokens.ids))

    def _features(self, features: T, i: int) -> T:
        """(T, H) the i-th H columns."""
        width = self._spec.hidden_size
        return self._ops.columns(features, i * width, (i + 1) * width)

    def _layer(self, layer: TransformerLayer[T], x: T, addend: T | None, batch: LayerInputs[T]) -> tuple[T, T | None]:
        """The layer's result is the sum of both. addend: what is to be added to x."""
        if self._spec.norm_first:
            x, h = self._add_norm(x, addend, layer.attention_norm)
            x, h = self._add_norm(x, self._attended(layer, h, batch), layer.output_norm)
            return x, self._between(layer, h, batch)
        h = self._norm_of_sum(x, self._attended(layer, x, batch), layer.attention_norm)
        x = h if layer.input_norm is None else self._norm_of_sum(x, h, layer.input_norm)
        return self._norm_of_sum(x, self._between(layer, x, batch), layer.output_norm), None

    def _convolved(self, parts: Convolution[T], x: T, words: T, batch: LayerInputs[T]) -> T:
        ops = self._ops
        shifted = [(ops.shift(words, offset, batch.tokens) if offset else words, tap) for offset, tap in parts.taps]
        mixed = reduce(ops.add, [ops.linear(row, tap.weight, tap.bias) for row, tap in shifted])
        return self._norm_of_sum(x, ops.activation(mixed, parts.activation), parts.norm)

    def _attended(self, layer: TransformerLayer[T], x: T, batch: LayerInputs[T]) -> T:
        parts, tokens = layer.attention, batch.tokens
        if self._weights.keeps_features and tokens.features is not None:
            x = self._ops.place(x, tokens.features, tokens.type_ids)
        if isinstance(parts, Attention):
            return self._added(self._attend(parts, x, batch), layer.attention_out_norm)
        ops = self._ops
        before, after, value = (self._linear(x, part, batch) for part in (parts.before, parts.after, parts.value))
        u = ops.multiply(before, value)
        taps = [ops.multiply(ops.shift(u, offset, tokens) if offset else u, weights) for offset, weights in parts.taps]
        mixed = reduce(ops.add, taps if parts.bias is None else [*taps, parts.bias])
        return self._added(self._linear(ops.multiply(after, mixed), parts.out, batch), layer.attention_out_norm)

    def _attend(self, parts: Attention[T], x: T, batch: LayerInputs[T]) -> T:
        ops, spec, tokens, rotations = self._ops, self._spec, batch.tokens, batch.rotations
        q, k, v = self._linears(x, parts.inputs, batch)  # (T, Q), (T, K), (T, K)
        v = self._norm(v, parts.value_norm)
        head_size = parts.head_size or spec.head_size
        if parts.rotary is None:
            q, k = self._norm(q, parts.query_norm), self._norm(k, parts.key_norm)
        else:
            q = self._rotated(q, parts.query_norm, rotations[id(parts.query_rotary or parts.rotary)], head_size)
            k = self._rotated(k, parts.key_norm, rotations[id(parts.rotary)], head_size)
        attention = AttentionSpec(
            heads=spec.heads,
            head_size=head_size,
            kv_heads=parts.kv_heads or spec.kv_heads,
            scale=spec.attention_scale,
            causal=spec.causal,
            window=parts.window,
            window_after=parts.window_after,
            score_cap=spec.score_cap,
        )
        buckets = self._weights.buckets
        if buckets is None:
            a = ops.attention(q, k, v, tokens, attention, self._weights.attention_bias)
        else:
            a = ops.disentangled_attention(q, k, v, parts.place_k, parts.place_q, buckets, tokens, attention)
        return self._linear(a, parts.out, batch)

    def _between(self, layer: TransformerLayer[T], x: T, batch: LayerInputs[T]) -> T:
        mlp = layer.mlp
        h = self._mixed(mlp, x, batch) if isinstance(mlp, Mixture) else self._mlp(mlp, batch, x)
        return self._added(h, layer.mlp_out_norm)

    def _added(self, h: T, norm: Norm[T] | None) -> T:
        h = self._norm(h, norm)
        return h if self._spec.residual_scale == 1.0 else self._ops.scale(h, self._spec.residual_scale)

    def _gated(self, gate: WordGate[T], x: T, words: T, batch: LayerInputs[T]) -> T:
        ops = self._ops
        by_word = ops.scale(self._linear(words, gate.words, batch), self._spec.hidden_size**-0.5)
        inner = ops.activation(self._linear(x, gate.inner, batch), self._spec.activation)
        h = ops.multiply(inner, self._norm(by_word, gate.words_norm))  # (T, G)
        return self._norm(self._linear(h, gate.out, batch), gate.out_norm)

    def _mixed(self, mixture: Mixture[T], x: T, batch: LayerInputs[T]) -> T:
        # Experts get some of the rows, so no adapter may change them: their readers are without.
        experts = [partial(self._mlp, mlp, batch) for mlp in mixture.experts]
        h = self._ops.mixture(x, self._linear(x, mixture.router, batch), mixture.top, experts, batch.tokens)
        return h if mixture.bias is None else self._ops.add(h, mixture.bias)

    def _mlp(self, mlp: Mlp[T], batch: LayerInputs[T], x: T) -> T:
        ops, kind = self._ops, self._spec.activation
        if mlp.gate is not None:
            gate, up = self._linears(x, (mlp.gate, mlp.up), batch)  # (T, F), (T, F)
            h = ops.gated(gate, up, kind)
        else:
            h = ops.activation(self._linear(x, mlp.up, batch), kind)
        return self._linear(h, mlp.down, batch)

    def _rotated(self, x: T, norm: Norm[T] | None, cos_sin: CosSin[T], head_size: int) -> T:
        ops, spec = self._ops, self._spec
        if norm is not None and spec.rms:
            return ops.rotate_normed(x, norm.weight, spec.norm_eps, cos_sin.cos, cos_sin.sin, head_size)
        return ops.rotate(self._norm(x, norm), cos_sin.cos, cos_sin.sin, head_size)

    def _linears(self, x: T, linears: Sequence[Linear[T]], batch: LayerInputs[T]) -> list[T]:
        if any(each.inputs is not None or each.outputs is not None for each in linears):
            return [self._linear(x, each, batch) for each in linears]
        computed = self._ops.linears(x, [(each.weight, each.bias) for each in linears])
        return [self._adapted(y, x, linear, batch) for y, linear in zip(computed, linears, strict=True)]

    def _linear(self, x: T, linear: Linear[T], batch: LayerInputs[T]) -> T:
        if linear.inputs is not None:
            x = self._ops.clip(x, linear.inputs.least, linear.inputs.most)
        y = self._ops.linear(x, linear.weight, linear.bias)
        if linear.outputs is not None:
            y = self._ops.clip(y, linear.outputs.least, linear.outputs.most)
        return self._adapted(y, x, linear, batch)

    def _adapted(self, y: T, x: T, linear: Linear[T], batch: LayerInputs[T]) -> T:
        if linear.change is None or not batch.gates:
            return y
        return self._changed(y, self._ops.product(x, linear.change.down), linear.change, batch)

    def _changed(self, y: T, low: T, change: LowRank[T], batch: LayerInputs[T]) -> T:
        """y (T, O) with what each row's adapter adds to it. low (T, R): the rows in all ranks."""
        ops, adapters = self._ops, batch.tokens.adapters
        y = ops.add(y, ops.product(ops.multiply(low, batch.gates[id(change.gates)]), change.up))
        if change.factors is None or adapters is None:
            return y
        y = ops.multiply(y, ops.embed(change.factors, adapters))
        return y if change.biases is None else ops.add(y, ops.embed(change.biases, adapters))

    def _add_norm(self, x: T, addend: T | None, norm: Norm[T] | None) -> tuple[T, T]:
        ops, eps = self._ops, self._spec.norm_eps
        if addend is None or norm is None:
            total = x if addend is None else ops.add(x, addend)
            return total, self._norm(total, norm)
        if self._spec.rms:
            return ops.add_rms_norm(x, addend, norm.weight, eps)
        return ops.add_layer_norm(x, addend, norm.weight, norm.bias, eps)

    def _norm_of_sum(self, x: T, addend: T | None, norm: Norm[T] | None) -> T:
        if self._spec.rms or addend is None or norm is None:
            return self._add_norm(x, addend, norm)[1]
        return self._ops.layer_norm_of_sum(x, addend, norm.weight, norm.bias, self._spec.norm_eps)

    def _norm(self, x: T, norm: Norm[T] | None) -> T:
        if norm is None:
            return x
        if self._spec.rms:
            return self._ops.rms_norm(x, norm.weight, self._spec.norm_eps)
        return self._ops.layer_norm(x, norm.weight, norm.bias, self._spec.norm_eps)
