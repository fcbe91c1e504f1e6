"""`model_type: mobilebert`. Names as in transformers/models/mobilebert/modeling_mobilebert.py.

Differences from BERT: a token's vector is made from its own word and both neighbours, a layer computes in a narrower
width between two linear layers, has several MLPs, and scales and shifts each number instead of normalizing. A text is
computed without padding: transformers' results for the last token of a padded text depend on the padding token.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vectord.checkpoints.config_keys import Harmless, harmless
from vectord.compute.networks import encoder, facts
from vectord.compute.networks.heads import Classifier, MaskedLM, Projection
from vectord.compute.networks.transformer import (
    Attention,
    LayerInputs,
    Mlp,
    Transformer,
    TransformerLayer,
    TransformerSpec,
    TransformerWeights,
)
from vectord.compute.networks.weights import POOLER, HarmlessTensors, Linear, Norm, WeightReader
from vectord.compute.ops.base import Ops, T

ONLY: Mapping[str, object] = {  # of every published model
    "trigram_input": True,
    "use_bottleneck": True,
    "use_bottleneck_attention": False,
    "key_query_shared_bottleneck": True,
    "normalization_type": "no_norm",
}
HARMLESS: Mapping[str, Harmless] = {
    **encoder.HARMLESS,
    **harmless("only classifiers read it", "classifier_activation"),
    **harmless("intra_bottleneck_size is read instead", "true_hidden_size"),
    **harmless("nothing is normalized but the input of a head, which reads it", "layer_norm_eps"),
}
HARMLESS_TENSORS: Collection[HarmlessTensors] = (
    *encoder.HARMLESS_TENSORS,
    POOLER,
    *encoder.BERT_WORDS_HEAD,
)
PREFIXES = ("", "mobilebert.")
_NEIGHBOURS = (1, 0, -1)  # in the order of the columns of embedding_transformation


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer(TransformerLayer[T]):
    """N: the narrower width. Norms scale and shift."""

    narrow: Linear[T]  # (N, H) what attention's result is added to
    mlps: tuple[tuple[Mlp[T], Norm[T]], ...]  # each with the norm of its sum; `mlp` is the last
    widen: Linear[T]  # (H, N)

    @property
    def linears(self) -> list[Linear[T]]:
        """Those that adapters may change: query and key contain the layer before them."""
        assert isinstance(self.attention, Attention)
        of_mlps = [linear for mlp, _ in self.mlps for linear in (mlp.up, mlp.down)]
        return [self.attention.value, self.attention.out, self.widen, *of_mlps]


class _MobileBert(Transformer[T]):
    def __init__(
        self, spec: TransformerSpec, weights: TransformerWeights[T], ops: Ops[T], neighbours: tuple[Linear[T], ...]
    ) -> None:
        super().__init__(spec, weights, ops)
        self._neighbours = neighbours  # (H, E) each, in the order of _NEIGHBOURS

    def _embed(self, batch: LayerInputs[T]) -> T:
        ops, weights, tokens = self._ops, self._weights, batch.tokens
        words = ops.embed(weights.words, tokens.ids)
        assert weights.positions is not None and weights.types is not None and weights.norm is not None
        x = ops.add(ops.embed(weights.positions, tokens.positions), ops.embed(weights.types, tokens.type_ids))
        for offset, linear in zip(_NEIGHBOURS, self._neighbours, strict=True):
            x = ops.add(x, self._linear(ops.shift(words, offset, tokens) if offset else words, linear, batch))
        return self._norm(x, weights.norm)

    def _layer(self, layer: TransformerLayer[T], x: T, addend: T | None, batch: LayerInputs[T]) -> tuple[T, T | None]:
        assert isinstance(layer, _Layer) and addend is None and isinstance(layer.attention, Attention)
        attended = self._attend(layer.attention, x, batch)
        h = self._norm(self._ops.add(attended, self._linear(x, layer.narrow, batch)), layer.attention_norm)
        for mlp, norm in layer.mlps:
            h = self._norm(self._ops.add(self._mlp(mlp, batch, h), h), norm)
        return self._norm(self._ops.add(self._linear(h, layer.widen, batch), x), layer.output_norm), None

    def _norm(self, x: T, norm: Norm[T] | None) -> T:
        if norm is None:
            return x
        assert norm.bias is not None
        return self._ops.add(self._ops.multiply(x, norm.weight), norm.bias)


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    """Raises ModelUnavailable."""
    for key, only in ONLY.items():
        facts.require(config, key, only)
    narrow = facts.size(config, "intra_bottleneck_size", 128)
    sizes = {"num_attention_heads": config.get("num_attention_heads"), "intra_bottleneck_size": narrow}
    heads = facts.heads(sizes, "num_attention_heads", "intra_bottleneck_size")
    spec = TransformerSpec(
        vocab_size=facts.size(config, "vocab_size"),
        max_tokens=facts.size(config, "max_position_embeddings"),
        hidden_size=facts.size(config, "hidden_size"),
        intermediate_size=facts.size(config, "intermediate_size"),
        layers=facts.size(config, "num_hidden_layers", at_most=1024),
        heads=heads,
        head_size=narrow // heads,
        activation=facts.activation(config, "hidden_act", default="relu"),
        norm_eps=1e-12,
        types=facts.size(config, "type_vocab_size"),
    )
    facts.require(config, "is_decoder", False)
    mlps, size = facts.size(config, "num_feedforward_networks", 4, at_most=64), facts.size(config, "embedding_size")
    weights = weights.after_prefix(PREFIXES, encoder.WORDS)
    table = weights.under("embeddings.")
    columns = np.split(table.array("embedding_transformation.weight", spec.hidden_size, 3 * size), 3, axis=1)
    bias = table.tensor("embedding_transformation.bias", spec.hidden_size)
    neighbours = tuple(
        Linear(table.constant(f"neighbour{i}", part), bias if i == 0 else None) for i, part in enumerate(columns)
    )
    body = TransformerWeights(
        words=weights.tensor(encoder.WORDS, spec.vocab_size, size),
        positions=table.tensor("position_embeddings.weight", spec.max_tokens, spec.hidden_size),
        types=weights.tensor(encoder.TYPES, spec.types, spec.hidden_size),
        norm=_scale(table, "LayerNorm", spec.hidden_size),
        layers=tuple(_layer(spec, weights.under(f"encoder.layer.{i}."), narrow, mlps) for i in range(spec.layers)),
    )
    return _MobileBert(spec, body, ops, neighbours)


def classifier(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], labels: int) -> Classifier[T]:
    """Return the head of MobileBertForSequenceClassification. Raises ModelUnavailable."""
    width = facts.size(config, "hidden_size")
    scores = Projection(weights.linear("classifier", width, labels))
    if not facts.flag(config, "classifier_activation", True):
        return Classifier("cls", (scores,))
    body = weights.after_prefix(PREFIXES, encoder.WORDS)
    return Classifier("cls", (Projection(body.linear("pooler.dense", width, width), "tanh"), scores))


def masked_lm(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> MaskedLM[T]:
    """Return the head of MobileBertForMaskedLM: word vectors with further columns. Raises ModelUnavailable."""
    vocabulary, size = facts.size(config, "vocab_size"), facts.size(config, "embedding_size")
    width, eps = facts.size(config, "hidden_size"), facts.epsilon(config, "layer_norm_eps")
    head, body = weights.under("cls.predictions."), weights.after_prefix(PREFIXES, encoder.WORDS)
    dense = head.linear("transform.dense", width, width)
    tied = facts.flag(config, "tie_word_embeddings", True)
    if tied:
        head.check_tied("decoder.weight", body, encoder.WORDS, config, vocabulary, size)
    tied = tied or "decoder.weight" not in head
    words = body.array(encoder.WORDS, vocabulary, size) if tied else head.array("decoder.weight", vocabulary, size)
    columns = [words, head.array("dense.weight", width - size, vocabulary).T] if width > size else [words]
    return MaskedLM(
        transform=Projection(
            dense, facts.activation(config, "hidden_act", default="relu"), head.norm("transform.LayerNorm", width), eps
        ),
        words=head.constant("words", np.concatenate(columns, axis=1)),
        bias=head.tensor(head.first_of("decoder.bias", "bias"), vocabulary),
    )


def _layer(spec: TransformerSpec, weights: WeightReader[T], narrow: int, mlps: int) -> _Layer[T]:
    width, inner = spec.hidden_size, spec.intermediate_size
    own, output = weights.under("attention.self."), weights.under("attention.output.")

    def mlp(prefix: str) -> tuple[Mlp[T], Norm[T]]:
        up = weights.linear(f"{prefix}intermediate.dense", narrow, inner)
        down = weights.linear(f"{prefix}output.dense", inner, narrow)
        return Mlp(up=up, down=down), _scale(weights, f"{prefix}output.LayerNorm", narrow)

    parts = (*(mlp(f"ffn.{i}.") for i in range(mlps - 1)), mlp(""))
    first, shift = _affine(weights, "bottleneck.attention", width, narrow)
    through = weights.under("bottleneck.input.")
    return _Layer(
        attention=Attention(
            query=_after(own, "query", narrow, first, shift),
            key=_after(own, "key", narrow, first, shift),
            value=own.linear("value", width, narrow),
            out=output.linear("dense", narrow, narrow),
        ),
        attention_norm=_scale(output, "LayerNorm", narrow),
        narrow=_constant(through, "narrow", *_affine(weights, "bottleneck.input", width, narrow)),
        mlp=parts[-1][0],
        mlps=parts,
        widen=weights.linear("output.bottleneck.dense", narrow, width),
        output_norm=_scale(weights, "output.bottleneck.LayerNorm", width),
    )


def _affine(weights: WeightReader[T], name: str, inputs: int, outputs: int) -> tuple[Any, Any]:
    """(outputs, inputs), (outputs,): a linear layer with the scale and shift after it."""
    weight, bias = weights.array(f"{name}.dense.weight", outputs, inputs), weights.array(f"{name}.dense.bias", outputs)
    scale, shift = (weights.array(f"{name}.LayerNorm.{part}", outputs) for part in ("weight", "bias"))
    return weight * scale[:, None], bias * scale + shift


def _after(weights: WeightReader[T], name: str, size: int, first: Any, shift: Any) -> Linear[T]:
    """The layer `name` of what the affine map of `first` and `shift` makes, as one layer."""
    weight, bias = weights.array(f"{name}.weight", size, size), weights.array(f"{name}.bias", size)
    return _constant(weights, name, weight.astype(np.float64) @ first, weight.astype(np.float64) @ shift + bias)


def _constant(weights: WeightReader[T], name: str, weight: Any, bias: Any) -> Linear[T]:
    return Linear(weights.constant(f"{name}.weight", weight), weights.constant(f"{name}.bias", bias))


def _scale(weights: WeightReader[T], name: str, width: int) -> Norm[T]:
    """(1, width) each"""
    factor, shift = (weights.array(f"{name}.{part}", width)[None] for part in ("weight", "bias"))
    return Norm(weights.constant(f"{name}.weight", factor), weights.constant(f"{name}.bias", shift))
