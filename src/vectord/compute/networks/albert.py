"""`model_type: albert`: BERT whose layers share their weights. Names as in transformers/models/albert."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from vectord.compute.networks import encoder, facts
from vectord.compute.networks.heads import Classifier, Projection
from vectord.compute.networks.transformer import Transformer
from vectord.compute.networks.weights import HarmlessTensors, WeightReader
from vectord.compute.ops.base import Ops, T

NAMES = encoder.LayerNames(
    prefix="encoder.albert_layer_groups.0.albert_layers",
    attention=("attention.query", "attention.key", "attention.value"),
    attention_out="attention.dense",
    attention_norm="attention.LayerNorm",
    mlp=("ffn",),
    down="ffn_output",
    output_norm="full_layer_layer_norm",
)
HARMLESS = encoder.HARMLESS
HARMLESS_TENSORS: Collection[HarmlessTensors] = (
    *encoder.HARMLESS_TENSORS,
    HarmlessTensors("the body's pooler, which only classifiers read", r"(\w+\.)?pooler\.(weight|bias)"),
    HarmlessTensors("heads of pretraining", r"(predictions|sop_classifier)\..+"),
)
PREFIXES = ("", "albert.")  # of a bare model, and of one under a head


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    for key in ("num_hidden_groups", "inner_group_num"):
        facts.require(config, key, 1)  # of every published model
    spec = encoder.read_spec(config, types=facts.size(config, "type_vocab_size"))
    weights = weights.after_prefix(PREFIXES, encoder.WORDS)
    layer = encoder.read_layer(spec, weights, NAMES, 0)
    return encoder.read_encoder(
        spec,
        weights,
        ops,
        NAMES,
        first_position=0,
        embedding_size=facts.size(config, "embedding_size"),
        widen="encoder.embedding_hidden_mapping_in",
        layers=(layer,) * spec.layers,
    )


def classifier(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], labels: int) -> Classifier[T]:
    width = facts.size(config, "hidden_size")
    body = weights.after_prefix(PREFIXES, encoder.WORDS)
    pooler = Projection(body.linear("pooler", width, width), "tanh")
    return Classifier("cls", (pooler, Projection(weights.linear("classifier", width, labels))))
