"""`model_type: bert` and `ernie`: BERT, MiniLM, BGE v1.5, E5, GTE v1. Names as in transformers/models/bert.

RoBERTa (roberta.py) and JinaBERT (jina_bert_v2.py) share most keys and tensor names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace

from vectord.checkpoints.checkpoint import Weight
from vectord.checkpoints.config_keys import Harmless, harmless
from vectord.compute.networks import encoder, facts
from vectord.compute.networks.heads import Classifier, MaskedLM, classify_pooled
from vectord.compute.networks.transformer import Attention, Transformer
from vectord.compute.networks.weights import POOLER, HarmlessTensors, WeightReader
from vectord.compute.ops.base import Ops, T

_RELATIVE = ("absolute", "relative_key", "relative_key_query")
NAMES = encoder.LayerNames(
    prefix="encoder.layer",
    attention=("attention.self.query", "attention.self.key", "attention.self.value"),
    attention_out="attention.output.dense",
    attention_norm="attention.output.LayerNorm",
    mlp=("intermediate.dense",),
    down="output.dense",
    output_norm="output.LayerNorm",
)
HEAD = encoder.HeadNames(
    dense="cls.predictions.transform.dense",
    norm="cls.predictions.transform.LayerNorm",
    decoder="cls.predictions.decoder",
    bias="cls.predictions.bias",
)

HARMLESS: Mapping[str, Harmless] = {
    **encoder.HARMLESS,
    **harmless("ERNIE's, without vectors of tasks", "task_id task_type_vocab_size"),
}
HARMLESS_TENSORS: Collection[HarmlessTensors] = (*encoder.HARMLESS_TENSORS, POOLER, *encoder.BERT_WORDS_HEAD)


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    spec, weights = encoder.read_spec(config, types=facts.size(config, "type_vocab_size")), body(weights)
    types = None
    if config["model_type"] == "ernie" and facts.flag(config, "use_task_id", False):
        # transformers gives task 0 to every token, so its vector is added to those of the types.
        count = facts.size(config, "task_type_vocab_size")
        tasks = weights.array("embeddings.task_type_embeddings.weight", count, spec.hidden_size)
        types = weights.constant(encoder.TYPES, weights.array(encoder.TYPES, spec.types, spec.hidden_size) + tasks[0])
    kinds = _RELATIVE if config["model_type"] == "bert" else ("absolute",)
    kind = facts.choice(config, "position_embedding_type", kinds, "absolute")
    if kind == "absolute":
        return encoder.read_encoder(spec, weights, ops, NAMES, first_position=0, types=types)
    weights.ignore("embeddings.position_embeddings.weight")  # saved, and added to nothing
    # All heads share a vector for each distance of query less key: queries attend to it, and with relative_key_query so
    # do keys. transformers has these layers up to version 4.
    layers = []
    for i in range(spec.layers):
        layer = encoder.read_layer(spec, weights, NAMES, i)
        name = f"{NAMES.prefix}.{i}.attention.self.distance_embedding.weight"
        table = weights.array(name, 2 * spec.max_tokens - 1, spec.head_size)
        places = weights.constant(name, np.tile(table, spec.heads))  # (2 * max_tokens - 1, H)
        assert isinstance(layer.attention, Attention)
        place_q = places if kind == "relative_key_query" else None
        layers.append(replace(layer, attention=replace(layer.attention, place_k=places, place_q=place_q)))
    buckets = np.arange(2 * spec.max_tokens - 1, dtype=np.int32)
    return encoder.read_encoder(
        spec, weights, ops, NAMES, layers=layers, buckets=ops.constant(Weight("buckets", "I32", buckets))
    )


def classifier(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], labels: int) -> Classifier[T]:
    return classify_pooled(body(weights), weights, facts.size(config, "hidden_size"), labels)


def masked_lm(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> MaskedLM[T]:
    return encoder.read_masked_lm(config, encoder.read_spec(config), weights, body(weights), HEAD)


def body(weights: WeightReader[T]) -> WeightReader[T]:
    return weights.after_prefix(("", "bert.", "ernie."), encoder.WORDS)
