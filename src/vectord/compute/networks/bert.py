"""`model_type: bert`, `ernie` and `electra`: BERT, MiniLM, BGE v1.5, E5, GTE v1.

Names as in transformers/models/bert and electra.

ELECTRA has narrower word vectors, and heads of its own. RoBERTa (roberta.py) and JinaBERT (jina_bert_v2.py) share most
keys and tensor names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from vectord.checkpoints.config_keys import Harmless, harmless
from vectord.compute.networks import encoder, facts
from vectord.compute.networks.heads import Classifier, MaskedLM, classify_first, classify_pooled
from vectord.compute.networks.transformer import Transformer
from vectord.compute.networks.weights import POOLER, HarmlessTensors, WeightReader
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
ELECTRA_HEAD = encoder.HeadNames(
    dense="generator_predictions.dense", norm="generator_predictions.LayerNorm", decoder="generator_lm_head"
)

HARMLESS: Mapping[str, Harmless] = {
    **encoder.HARMLESS,
    **harmless("ERNIE's, without vectors of tasks", "task_id task_type_vocab_size"),
}
HARMLESS_TENSORS: Collection[HarmlessTensors] = (
    *encoder.HARMLESS_TENSORS,
    POOLER,
    *encoder.BERT_WORDS_HEAD,
    HarmlessTensors("ELECTRA's other head of pretraining", r"discriminator_predictions\..+"),
    *encoder.words_head(r"(generator_predictions|generator_lm_head)\..+", r"generator_lm_head\.weight"),
    encoder.DENSE_CLASSIFIER,
)


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    spec, weights = encoder.read_spec(config, types=facts.size(config, "type_vocab_size")), body(weights)
    types = None
    if config["model_type"] == "ernie" and facts.flag(config, "use_task_id", False):
        # transformers gives task 0 to every token, so its vector is added to those of the types.
        count = facts.size(config, "task_type_vocab_size")
        tasks = weights.array("embeddings.task_type_embeddings.weight", count, spec.hidden_size)
        types = weights.constant(encoder.TYPES, weights.array(encoder.TYPES, spec.types, spec.hidden_size) + tasks[0])
    facts.require(config, "position_embedding_type", "absolute")
    size = _embedding_size(config)
    widen = None if size in (None, spec.hidden_size) else "embeddings_project"
    return encoder.read_encoder(
        spec, weights, ops, NAMES, first_position=0, types=types, embedding_size=size, widen=widen
    )


def classifier(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], labels: int) -> Classifier[T]:
    width = facts.size(config, "hidden_size")
    if config["model_type"] == "electra":
        return classify_first(weights, width, labels, "gelu")
    return classify_pooled(body(weights), weights, width, labels)


def masked_lm(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> MaskedLM[T]:
    spec, size = encoder.read_spec(config), _embedding_size(config)
    if size is None:
        return encoder.read_masked_lm(config, spec, weights, body(weights), HEAD)
    return encoder.read_masked_lm(config, spec, weights, body(weights), ELECTRA_HEAD, "gelu", size)


def _embedding_size(config: Mapping[str, Any]) -> int | None:
    return facts.size(config, "embedding_size") if config["model_type"] == "electra" else None


def body(weights: WeightReader[T]) -> WeightReader[T]:
    return weights.after_prefix(("", "bert.", "ernie.", "electra."), encoder.WORDS)
