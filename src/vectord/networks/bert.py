"""`model_type: bert`: BERT, MiniLM, BGE v1.5, E5, GTE v1. Names as in transformers/models/bert/modeling_bert.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vectord.errors import ModelUnavailable
from vectord.networks import facts
from vectord.networks.encoder import Encoder, EncoderLayer, EncoderSpec, EncoderWeights
from vectord.networks.weights import WeightReader
from vectord.ops.base import Ops, T

WORDS = "embeddings.word_embeddings.weight"


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Encoder[T]:
    """The encoder of a bare model ("") or of one under a head ("bert."). Raises ModelUnavailable."""
    spec = _spec(config)
    return Encoder(spec, _weights(spec, weights.after_prefix(("", "bert."), WORDS)), ops)


def _spec(config: Mapping[str, Any]) -> EncoderSpec:
    facts.require(config, "position_embedding_type", "absolute")
    facts.require(config, "is_decoder", False)
    spec = EncoderSpec(
        vocab_size=facts.size(config, "vocab_size"),
        max_positions=facts.size(config, "max_position_embeddings"),
        type_vocab_size=facts.size(config, "type_vocab_size"),
        hidden_size=facts.size(config, "hidden_size"),
        intermediate_size=facts.size(config, "intermediate_size"),
        layers=facts.size(config, "num_hidden_layers", at_most=1024),
        heads=facts.size(config, "num_attention_heads"),
        activation=facts.activation(config, "hidden_act"),
        norm_eps=facts.epsilon(config, "layer_norm_eps"),
    )
    if spec.hidden_size % spec.heads:
        raise ModelUnavailable(
            f"config.json: hidden_size {spec.hidden_size} is no multiple of num_attention_heads {spec.heads}"
        )
    return spec


def _weights(spec: EncoderSpec, weights: WeightReader[T]) -> EncoderWeights[T]:
    width = spec.hidden_size
    return EncoderWeights(
        words=weights.tensor(WORDS, spec.vocab_size, width),
        positions=weights.tensor("embeddings.position_embeddings.weight", spec.max_positions, width),
        types=weights.tensor("embeddings.token_type_embeddings.weight", spec.type_vocab_size, width),
        norm=weights.norm("embeddings.LayerNorm", width),
        layers=tuple(_layer(spec, weights, f"encoder.layer.{i}") for i in range(spec.layers)),
    )


def _layer(spec: EncoderSpec, weights: WeightReader[T], name: str) -> EncoderLayer[T]:
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
