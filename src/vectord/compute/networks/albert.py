"""`model_type: albert`: BERT whose layers share their weights, in groups. Names as in transformers/models/albert."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from msgspec.structs import replace

from vectord.compute.networks import encoder, facts
from vectord.compute.networks.heads import Classifier, MaskedLM, Projection
from vectord.compute.networks.transformer import Transformer
from vectord.compute.networks.weights import HarmlessTensors, WeightReader
from vectord.compute.ops.base import Ops, T

NAMES = encoder.LayerNames(
    prefix="encoder.albert_layer_groups.{group}.albert_layers",
    attention=("attention.query", "attention.key", "attention.value"),
    attention_out="attention.dense",
    attention_norm="attention.LayerNorm",
    mlp=("ffn",),
    down="ffn_output",
    output_norm="full_layer_layer_norm",
)
HEAD = encoder.HeadNames(
    dense="predictions.dense", norm="predictions.LayerNorm", decoder="predictions.decoder", bias="predictions.bias"
)
HARMLESS = encoder.HARMLESS
HARMLESS_TENSORS: Collection[HarmlessTensors] = (
    *encoder.HARMLESS_TENSORS,
    HarmlessTensors("the body's pooler, which only classifiers read", r"(\w+\.)?pooler\.(weight|bias)"),
    HarmlessTensors("another head of pretraining", r"sop_classifier\..+"),
    *encoder.words_head(r"predictions\..+", r"predictions\.(decoder\.(weight|bias)|bias)"),
)
PREFIXES = ("", "albert.")  # of a bare model, and of one under a head


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    spec = encoder.read_spec(config, types=facts.size(config, "type_vocab_size"))
    weights = weights.after_prefix(PREFIXES, encoder.WORDS)
    count = facts.size(config, "num_hidden_groups", 1, at_most=spec.layers)
    inner = facts.size(config, "inner_group_num", 1, at_most=1024)
    groups = []
    for group in range(count):
        names = replace(NAMES, prefix=NAMES.prefix.format(group=group))
        groups.append([encoder.read_layer(spec, weights, names, i) for i in range(inner)])
    return encoder.read_encoder(
        spec,
        weights,
        ops,
        NAMES,
        first_position=0,
        embedding_size=facts.size(config, "embedding_size"),
        widen="encoder.embedding_hidden_mapping_in",
        layers=[layer for i in range(spec.layers) for layer in groups[int(i / (spec.layers / count))]],
    )


def classifier(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], labels: int) -> Classifier[T]:
    width = facts.size(config, "hidden_size")
    body = weights.after_prefix(PREFIXES, encoder.WORDS)
    pooler = Projection(body.linear("pooler", width, width), "tanh")
    return Classifier("cls", (pooler, Projection(weights.linear("classifier", width, labels))))


def masked_lm(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> MaskedLM[T]:
    body, size = weights.after_prefix(PREFIXES, encoder.WORDS), facts.size(config, "embedding_size")
    return encoder.read_masked_lm(config, encoder.read_spec(config), weights, body, HEAD, embedding_size=size)
