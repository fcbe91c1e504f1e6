"""Heads: functions from last hidden states (T, H) to one output of a model.

network.py applies all of them to its own bodies. Backends that run other networks apply those of `heads_of`, which
need no weights of the body, to transformers' classes and to ONNX graphs. Those whose weights have other names in each
architecture are methods of `Architecture` (architecture.py). The engine does everything that needs no weights:
normalizing and cutting vectors, selecting tokens, sigmoid and softmax of scores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeAlias

import msgspec
import numpy as np

from vectord.checkpoints.checkpoint import Checkpoint, Weight, open_checkpoint
from vectord.checkpoints.folder import chain_width, pooled_width
from vectord.checkpoints.spec import DenseModule, ModelSpec, NormModule, Output, Pooling
from vectord.compute.networks import facts
from vectord.compute.networks.weights import Linear, Norm, WeightReader
from vectord.compute.ops.base import Activation, AttentionSpec, Ops, T, Tokens
from vectord.errors import ModelUnavailable

Head: TypeAlias = Callable[[T, Tokens[T]], T]


class Projection(msgspec.Struct, Generic[T], frozen=True):
    """A linear layer with optional activation and norm, or some of these alone."""

    linear: Linear[T] | None = None
    activation: Activation = "identity"
    norm: Norm[T] | None = None
    norm_eps: float = 1e-12
    slopes: tuple[T, T] | None = None  # (1,) after the layer: factor of numbers below 0, and 1 less that (PReLU)
    gate: Linear[T] | None = None  # (O, H) of the input: its sigmoid multiplies the layer's output (GLU)
    residual: Linear[T] | bool = False  # what is added before the norm: (O, H) of the input, or the input itself
    normalizes: bool = False  # whether each row gets length 1 in the end
    file: Checkpoint | None = None  # kept: a graph's constants may lie over its map without keeping it alive

    def apply(self, ops: Ops[T], x: T) -> T:
        """(T, H) to (T, O)."""
        y = x if self.linear is None else ops.linear(x, self.linear.weight, self.linear.bias)
        y = ops.activation(y, self.activation)
        if self.slopes is not None:
            slope, rest = self.slopes
            y = ops.add(ops.multiply(y, slope), ops.multiply(ops.activation(y, "relu"), rest))
        if self.gate is not None:
            y = ops.multiply(y, ops.activation(ops.linear(x, self.gate.weight, self.gate.bias), "sigmoid"))
        if self.residual:
            y = ops.add(y, x if self.residual is True else ops.linear(x, self.residual.weight, None))
        if self.norm is not None:
            y = ops.layer_norm(y, self.norm.weight, self.norm.bias, self.norm_eps)
        return ops.normalize(y) if self.normalizes else y


class Classifier(msgspec.Struct, Generic[T], frozen=True):
    pooling: Pooling
    projections: tuple[Projection[T], ...]  # the last one gives one number per label
    tokens: tuple[Projection[T], ...] = ()  # before pooling


class MaskedLM(msgspec.Struct, Generic[T], frozen=True):
    transform: Projection[T]
    words: T  # (V, H)
    bias: T  # (V,)


def heads_of(spec: ModelSpec, ops: Ops[T], tensors: Mapping[str, Weight] | None = None) -> dict[Output, Head[T]]:
    """Return the model's heads that need only the last hidden states. Raises ModelUnavailable if files do not fit.

    tensors: those of the body's files, changed by an adapter; None: they are read from the files.
    """
    heads: dict[Output, Head[T]] = {}
    if "tokens" in spec.outputs:
        heads["tokens"] = lambda x, tokens: x
    if "dense" in spec.outputs and spec.pooling != "attention":
        assert spec.pooling is not None, "only for models that embed"
        projections = _dense_projections(spec.dense_modules, spec, ops, tensors)
        if (width := chain_width(pooled_width(spec.hidden_size, spec.pooling), spec.dense_modules)) != spec.dimensions:
            raise ModelUnavailable(f"the model's modules give {width} numbers per text, not {spec.dimensions}")
        heads["dense"] = pooled_head(spec.pooling, projections, ops, max_tokens=spec.max_tokens)
    if "markers" in spec.outputs:
        heads["markers"] = pooled_head("last", _dense_projections(spec.dense_modules, spec, ops, tensors), ops)
    if spec.scores_by_modules:
        assert spec.pooling is not None and spec.pooling != "attention", "a pooling precedes the modules"
        projections = _dense_projections(spec.dense_modules, spec, ops, tensors)
        heads["scores"] = pooled_head(spec.pooling, projections, ops, max_tokens=spec.max_tokens)
    if "colbert" in spec.outputs and spec.colbert is not None:
        layers = _dense_projections(spec.colbert.dense_modules, spec, ops, tensors)
        if spec.colbert.linear:
            layers = (*layers, _bare_layer(spec.colbert.linear, spec.hidden_size, spec.colbert.dimensions, ops))
        # Each row of length 1. Source: FlagEmbedding's colbert_linear, pylate's Dense.
        heads["colbert"] = lambda x, tokens: ops.normalize(_in_sequence(layers, ops, x))
    if "lexical" in spec.outputs and spec.lexical is not None:
        lexical = _bare_layer(spec.lexical, spec.hidden_size, 1, ops, "relu")
        heads["lexical"] = lambda x, tokens: lexical.apply(ops, x)  # source: FlagEmbedding's sparse_linear
    if "token_scores" in spec.outputs:
        # `classifier`, after ModernBERT's `head`; `score` of decoders. Source: transformers' ...ForTokenClassification.
        file = open_checkpoint(spec.weights)
        weights = WeightReader(file, ops)
        name = "score" if "score.weight" in weights else "classifier"
        labels = Projection(weights.linear(name, spec.hidden_size, len(spec.token_labels)), file=file)
        token_layers: tuple[Projection[T], ...] = (labels,)
        if spec.architecture == "modernbert":
            token_layers = (dense_and_norm(spec.config, weights), *token_layers)
        heads["token_scores"] = lambda x, tokens: _in_sequence(token_layers, ops, x)
    return heads


def pooled_head(
    pooling: Pooling | tuple[Pooling, ...],
    projections: Sequence[Projection[T]],
    ops: Ops[T],
    tokens: Sequence[Projection[T]] = (),
    max_tokens: int = 0,
) -> Head[T]:
    """(T, H) to (M, O), not normalized: dense vectors, and the logits of classifiers.

    Pools each span, after the projections of `tokens`, in each of the ways of `pooling`, whose results are laid end to
    end. max_tokens: of a text, for weights by position. Source: sentence-transformers Pooling and Dense.
    """
    pools = [_pool(mode, ops, max_tokens) for mode in ((pooling,) if isinstance(pooling, str) else pooling)]

    def head(x: T, packed: Tokens[T]) -> T:
        states = _in_sequence(tokens, ops, x)
        parts = [pool(states, packed) for pool in pools]
        return _in_sequence(projections, ops, parts[0] if len(parts) == 1 else ops.concat(parts))

    return head


def _pool(mode: Pooling, ops: Ops[T], max_tokens: int) -> Head[T]:
    """(T, H) to (M, H)."""
    match mode:
        case "mean_sqrt_len":  # the sum, divided by the root of the number of rows
            length = span_length(ops, max_tokens)
            return lambda x, tokens: ops.multiply(ops.mean(x, tokens), ops.power(length(tokens), 0.5))
        case "weighted_mean":  # each row counts as often as its position says, from 1 at the start of the text
            places = _places(ops, max_tokens)

            def weighted(x: T, tokens: Tokens[T]) -> T:
                weights = ops.embed(places, tokens.positions)  # (T, 1)
                total = ops.mean(ops.multiply(x, weights), tokens)
                return ops.multiply(total, ops.power(ops.mean(weights, tokens), -1.0))

            return weighted
        case _:
            return {"cls": ops.first, "last": ops.last, "mean": ops.mean, "max": ops.max}[mode]


def read_by_query(ops: Ops[T], query: T, k: T, v: T, tokens: Tokens[T], spec: AttentionSpec) -> T:
    """(M, W): what a trained query (1, W) reads in the rows of each text. k, v (T, W)"""
    # It is the query of every row, so all rows of a text have the same result, and the first one is taken.
    return ops.first(ops.attention(ops.add(ops.scale(k, 0.0), query), k, v, tokens, spec), tokens)


def span_length(ops: Ops[T], max_tokens: int) -> Callable[[Tokens[T]], T]:
    """Return a function of a batch: (M, 1) the number of rows of each span."""
    places, one = _places(ops, max_tokens), ops.constant(Weight("one", "F32", np.ones(1, np.float32)))

    def length(tokens: Tokens[T]) -> T:
        at = ops.embed(places, tokens.positions)  # (T, 1)
        return ops.add(ops.add(ops.last(at, tokens), ops.scale(ops.first(at, tokens), -1.0)), one)

    return length


def _places(ops: Ops[T], max_tokens: int) -> T:
    """(max_tokens, 1) the number of each position, from 1."""
    return ops.constant(Weight("places", "F32", np.arange(1, max_tokens + 1, dtype=np.float32)[:, None]))


def splade_head(head: MaskedLM[T], spec: ModelSpec, ops: Ops[T]) -> Head[T]:
    """(T, H) to (M, V): the largest logit of each word, or the sum of its weights.

    Source: sentence-transformers SpladePooling. log(1 + relu) grows with the logit, so the engine applies it to the
    maximum.
    """
    pool = _word_sums(spec, ops.heads) if spec.sums_words else ops.max

    def pooled(x: T, tokens: Tokens[T]) -> T:
        states = head.transform.apply(ops, x)
        return ops.pooled_linear(states, head.words, head.bias, lambda logits: pool(logits, tokens))

    return pooled


def _word_sums(spec: ModelSpec, exact: Ops[T]) -> Head[T]:
    """(T, V) logits to (M, V): the sum of each word's weights over the tokens."""
    length = span_length(exact, spec.max_tokens)

    def total(logits: T, tokens: Tokens[T]) -> T:
        weights = exact.activation(logits, "log1p_relu")
        weights = exact.activation(weights, "log1p_relu") if spec.log_twice else weights
        return exact.multiply(exact.mean(weights, tokens), length(tokens))

    return total


def yes_no_head(words: T, ops: Ops[T]) -> Head[T]:
    """(T, H) to (M, A): the logits of the answers after the last token. words (A, H): their rows of the head."""
    return lambda x, tokens: ops.linear(ops.last(x, tokens), words, None)


def dense_and_norm(config: Mapping[str, Any], weights: WeightReader[T]) -> Projection[T]:
    """ModernBERT's `head`, before its classifiers and its words."""
    width = facts.size(config, "hidden_size")
    return Projection(
        weights.linear("head.dense", width, width, bias=facts.flag(config, "classifier_bias", False)),
        facts.activation(config, "classifier_activation", default="gelu"),
        weights.norm("head.norm", width, bias=facts.flag(config, "norm_bias", False)),
        facts.epsilon(config, "norm_eps"),
    )


def _in_sequence(projections: Sequence[Projection[T]], ops: Ops[T], x: T) -> T:
    for projection in projections:
        x = projection.apply(ops, x)
    return x


def _dense_projections(
    modules: Sequence[DenseModule | NormModule],
    spec: ModelSpec,
    ops: Ops[T],
    tensors: Mapping[str, Weight] | None,
) -> tuple[Projection[T], ...]:
    projections: list[Projection[T]] = []
    for module in modules:
        if module.weights is None:
            projections.append(Projection(normalizes=True))
            continue
        file: Checkpoint | None = None
        if tensors is not None and module.weights in spec.weights:
            reader = WeightReader(tensors, ops)
        else:
            file = open_checkpoint((module.weights,))
            reader = WeightReader(file, ops)
        if isinstance(module, NormModule):
            norm = reader.norm("norm", module.in_features or spec.dimensions)
            projections.append(Projection(norm=norm, norm_eps=1e-5, file=file))  # torch.nn.LayerNorm's default
        else:
            projections.append(_dense_projection(module, reader, file))
        if module.weights not in spec.weights:
            _check_all_read(reader, module.weights)
    return tuple(projections)


def _dense_projection(module: DenseModule, reader: WeightReader[T], file: Checkpoint | None) -> Projection[T]:
    inputs, outputs, kind = module.in_features, module.out_features, module.activation
    layer = partial(reader.linear, module.layer or "linear", inputs, outputs, bias=module.bias)
    if kind == "glu":
        return Projection(layer(rows=slice(module.width)), gate=layer(rows=slice(module.width, outputs)), file=file)
    residual: Linear[T] | bool = module.residual is True
    if residual and inputs != outputs:
        residual = reader.linear("residual", inputs, outputs, bias=False)
    if kind == "prelu":
        slope = reader.array("activation_function.weight", 1)
        slopes = reader.constant("slope", slope), reader.constant("1 - slope", 1 - slope)
        return Projection(layer(), slopes=slopes, residual=residual, file=file)
    return Projection(layer(), kind, residual=residual, file=file)


def _bare_layer(
    path: Path, inputs: int, outputs: int, ops: Ops[T], activation: Activation = "identity"
) -> Projection[T]:
    file = open_checkpoint((path,))
    reader = WeightReader(file, ops)
    linear = Linear(reader.tensor("weight", outputs, inputs), reader.tensor("bias", outputs))
    _check_all_read(reader, path)
    return Projection(linear, activation, file=file)


def _check_all_read(reader: WeightReader[T], path: Path) -> None:
    if unread := reader.unread():
        raise ModelUnavailable(f"{path}: tensor {min(unread)[:100]} is not one of this layer's")
