"""`model_type: distilbert`: BERT with half the layers. Names as in transformers/models/distilbert."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vectord.compute.networks import facts
from vectord.compute.networks.bert import WORDS
from vectord.compute.networks.encoder import EncoderBody, EncoderLayer, EncoderSpec, EncoderWeights
from vectord.compute.networks.heads.projection import Projection
from vectord.compute.networks.heads.scores import Classifier
from vectord.compute.networks.heads.splade import MaskedLM, output_words
from vectord.compute.networks.weights import WeightReader
from vectord.compute.ops.base import Ops, T


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> EncoderBody[T]:
    """Return the encoder of a bare model ("") or of one under a head ("distilbert."). Raises ModelUnavailable."""
    spec, weights = _spec(config), _body(weights)
    width = spec.hidden_size
    return EncoderBody(
        spec,
        EncoderWeights(
            words=weights.tensor(WORDS, spec.vocab_size, width),
            positions=weights.tensor("embeddings.position_embeddings.weight", spec.max_tokens, width),
            norm=weights.norm("embeddings.LayerNorm", width),
            layers=tuple(_layer(spec, weights, f"transformer.layer.{i}") for i in range(spec.layers)),
        ),
        ops,
    )


def classifier(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], labels: int) -> Classifier[T]:
    """Return the head of DistilBertForSequenceClassification. Raises ModelUnavailable."""
    width = facts.size(config, "dim")
    dense = Projection(weights.linear("pre_classifier", width, width), "relu")
    return Classifier("cls", (dense, Projection(weights.linear("classifier", width, labels))))


def masked_lm(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> MaskedLM[T]:
    """Return the head of DistilBertForMaskedLM. Raises ModelUnavailable."""
    spec = _spec(config)
    shape = spec.vocab_size, spec.hidden_size
    dense = weights.linear("vocab_transform", spec.hidden_size, spec.hidden_size)
    norm = weights.norm("vocab_layer_norm", spec.hidden_size)
    return MaskedLM(
        transform=Projection(dense, spec.activation, norm, spec.norm_eps),
        words=output_words(config, weights, "vocab_projector.weight", _body(weights), WORDS, shape),
        bias=weights.tensor("vocab_projector.bias", spec.vocab_size),
    )


def _body(weights: WeightReader[T]) -> WeightReader[T]:
    return weights.after_prefix(("", "distilbert."), WORDS)


def _spec(config: Mapping[str, Any]) -> EncoderSpec:
    return EncoderSpec(
        vocab_size=facts.size(config, "vocab_size"),
        max_tokens=facts.size(config, "max_position_embeddings"),
        hidden_size=facts.size(config, "dim"),
        intermediate_size=facts.size(config, "hidden_dim"),
        layers=facts.size(config, "n_layers", at_most=1024),
        heads=facts.heads(config, "n_heads", "dim"),
        activation=facts.activation(config, "activation"),
        norm_eps=1e-12,  # not in any config
    )


def _layer(spec: EncoderSpec, weights: WeightReader[T], name: str) -> EncoderLayer[T]:
    width = spec.hidden_size
    return EncoderLayer(
        query=weights.linear(f"{name}.attention.q_lin", width, width),
        key=weights.linear(f"{name}.attention.k_lin", width, width),
        value=weights.linear(f"{name}.attention.v_lin", width, width),
        attention_out=weights.linear(f"{name}.attention.out_lin", width, width),
        attention_norm=weights.norm(f"{name}.sa_layer_norm", width),
        up=weights.linear(f"{name}.ffn.lin1", width, spec.intermediate_size),
        down=weights.linear(f"{name}.ffn.lin2", spec.intermediate_size, width),
        output_norm=weights.norm(f"{name}.output_layer_norm", width),
    )
