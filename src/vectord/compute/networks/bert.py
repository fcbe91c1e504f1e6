"""`model_type: bert` and `ernie`: BERT, MiniLM, BGE v1.5, E5, GTE v1. Names as in transformers/models/bert.

RoBERTa (roberta.py) and JinaBERT (jina_bert_v2.py) share most keys and tensor names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vectord.checkpoints.config_keys import Harmless, harmless
from vectord.compute.networks import encoder, facts
from vectord.compute.networks.heads import Classifier, MaskedLM, classify_pooled
from vectord.compute.networks.transformer import Transformer, TransformerSpec
from vectord.compute.networks.weights import WeightReader
from vectord.compute.ops.base import Ops, T

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


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    """Return the encoder of a bare model ("") or of one under a head ("bert."). Raises ModelUnavailable."""
    facts.require(config, "position_embedding_type", "absolute")
    spec, weights = encoder.read_spec(config, types=facts.size(config, "type_vocab_size")), body(weights)
    types = _types_with_task(config, spec, weights) if config["model_type"] == "ernie" else None
    return encoder.read_encoder(spec, weights, ops, NAMES, first_position=0, types=types)


def _types_with_task(config: Mapping[str, Any], spec: TransformerSpec, weights: WeightReader[T]) -> T | None:
    """ERNIE's vectors of token types plus that of task 0, which transformers gives to every token; None: no tasks."""
    if not facts.flag(config, "use_task_id", False):
        return None
    tasks = weights.array(
        "embeddings.task_type_embeddings.weight", facts.size(config, "task_type_vocab_size"), spec.hidden_size
    )
    types = weights.array(encoder.TYPES, spec.types, spec.hidden_size)
    return weights.constant(encoder.TYPES, types + tasks[0])


def classifier(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], labels: int) -> Classifier[T]:
    """Return the head of BertForSequenceClassification. Raises ModelUnavailable."""
    return classify_pooled(body(weights), weights, facts.size(config, "hidden_size"), labels)


def masked_lm(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> MaskedLM[T]:
    """Return the head of BertForMaskedLM. Raises ModelUnavailable."""
    return encoder.read_masked_lm(config, encoder.read_spec(config), weights, body(weights), HEAD)


def body(weights: WeightReader[T]) -> WeightReader[T]:
    """Return the tensors of the encoder, without those of its heads."""
    return weights.after_prefix(("", "bert.", "ernie."), encoder.WORDS)
