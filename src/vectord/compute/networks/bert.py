"""`model_type: bert`: BERT, MiniLM, BGE v1.5, E5, GTE v1. Names as in transformers/models/bert/modeling_bert.py.

RoBERTa (roberta.py) and JinaBERT (jina_bert_v2.py) share most keys and tensor names, and use these functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vectord.compute.networks import facts
from vectord.compute.networks.encoder import EncoderBody, EncoderLayer, EncoderSpec, EncoderWeights
from vectord.compute.networks.heads.projection import Projection
from vectord.compute.networks.heads.scores import Classifier, classify_pooled
from vectord.compute.networks.heads.splade import MaskedLM, output_words
from vectord.compute.networks.weights import WeightReader
from vectord.compute.ops.base import Ops, T

WORDS = "embeddings.word_embeddings.weight"
TYPES = "embeddings.token_type_embeddings.weight"


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> EncoderBody[T]:
    """Return the encoder of a bare model ("") or of one under a head ("bert."). Raises ModelUnavailable."""
    facts.require(config, "position_embedding_type", "absolute")
    spec, weights = encoder_spec(config, types=facts.size(config, "type_vocab_size")), body(weights)
    width = spec.hidden_size
    return EncoderBody(
        spec,
        EncoderWeights(
            words=weights.tensor(WORDS, spec.vocab_size, width),
            positions=weights.tensor("embeddings.position_embeddings.weight", spec.max_tokens, width),
            types=weights.tensor(TYPES, spec.types, width),
            norm=weights.norm("embeddings.LayerNorm", width),
            layers=tuple(encoder_layer(spec, weights, f"encoder.layer.{i}") for i in range(spec.layers)),
        ),
        ops,
    )


def classifier(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], labels: int) -> Classifier[T]:
    """Return the head of BertForSequenceClassification. Raises ModelUnavailable."""
    return classify_pooled(body(weights), weights, facts.size(config, "hidden_size"), labels)


def masked_lm(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> MaskedLM[T]:
    """Return the head of BertForMaskedLM. Raises ModelUnavailable."""
    spec, name = encoder_spec(config), "cls.predictions"
    width = spec.hidden_size
    dense = weights.linear(f"{name}.transform.dense", width, width)
    norm = weights.norm(f"{name}.transform.LayerNorm", width)
    return MaskedLM(
        transform=Projection(dense, spec.activation, norm, spec.norm_eps),
        words=output_words(config, weights, f"{name}.decoder.weight", body(weights), WORDS, (spec.vocab_size, width)),
        bias=weights.tensor(weights.first_of(f"{name}.decoder.bias", f"{name}.bias"), spec.vocab_size),
    )


def body(weights: WeightReader[T]) -> WeightReader[T]:
    """Return the tensors of the encoder, without those of its heads."""
    return weights.after_prefix(("", "bert."), WORDS)


def encoder_spec(config: Mapping[str, Any], *, types: int = 0) -> EncoderSpec:
    """Read BERT's keys; types: number of token types. Raises ModelUnavailable."""
    facts.require(config, "is_decoder", False)
    return EncoderSpec(
        vocab_size=facts.size(config, "vocab_size"),
        max_tokens=facts.size(config, "max_position_embeddings"),
        hidden_size=facts.size(config, "hidden_size"),
        intermediate_size=facts.size(config, "intermediate_size"),
        layers=facts.size(config, "num_hidden_layers", at_most=1024),
        heads=facts.heads(config, "num_attention_heads", "hidden_size"),
        activation=facts.activation(config, "hidden_act"),
        norm_eps=facts.epsilon(config, "layer_norm_eps"),
        types=types,
    )


def encoder_layer(spec: EncoderSpec, weights: WeightReader[T], name: str) -> EncoderLayer[T]:
    """Return one layer under BERT's names. Raises ModelUnavailable."""
    width = spec.hidden_size
    return EncoderLayer(
        query=weights.linear(f"{name}.attention.self.query", width, width),
        key=weights.linear(f"{name}.attention.self.key", width, width),
        value=weights.linear(f"{name}.attention.self.value", width, width),
        attention_out=weights.linear(f"{name}.attention.output.dense", width, width),
        attention_norm=weights.norm(f"{name}.attention.output.LayerNorm", width),
        up=weights.linear(f"{name}.intermediate.dense", width, spec.intermediate_size),
        down=weights.linear(f"{name}.output.dense", spec.intermediate_size, width),
        output_norm=weights.norm(f"{name}.output.LayerNorm", width),
    )
