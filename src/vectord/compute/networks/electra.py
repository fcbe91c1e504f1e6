"""`model_type: electra`: BERT with narrower word vectors. Names as in transformers/models/electra."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from vectord.checkpoints.config_keys import Harmless
from vectord.compute.networks import encoder, facts
from vectord.compute.networks.bert import NAMES
from vectord.compute.networks.heads import Classifier, MaskedLM, classify_first
from vectord.compute.networks.transformer import Transformer
from vectord.compute.networks.weights import HarmlessTensors, WeightReader
from vectord.compute.ops.base import Ops, T

HEAD = encoder.HeadNames(
    dense="generator_predictions.dense", norm="generator_predictions.LayerNorm", decoder="generator_lm_head"
)
HARMLESS: Mapping[str, Harmless] = encoder.HARMLESS
HARMLESS_TENSORS: Collection[HarmlessTensors] = (
    *encoder.HARMLESS_TENSORS,
    HarmlessTensors("the other head of pretraining", r"discriminator_predictions\..+"),
    *encoder.words_head(r"(generator_predictions|generator_lm_head)\..+", r"generator_lm_head\.weight"),
    encoder.DENSE_CLASSIFIER,
)


PREFIXES = ("", "electra.")  # of a bare model, and of one under a head


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    facts.require(config, "position_embedding_type", "absolute")
    spec = encoder.read_spec(config, types=facts.size(config, "type_vocab_size"))
    size = facts.size(config, "embedding_size")
    return encoder.read_encoder(
        spec,
        weights.after_prefix(PREFIXES, encoder.WORDS),
        ops,
        NAMES,
        first_position=0,
        embedding_size=size,
        widen=None if size == spec.hidden_size else "embeddings_project",
    )


def classifier(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], labels: int) -> Classifier[T]:
    return classify_first(weights, facts.size(config, "hidden_size"), labels, "gelu")


def masked_lm(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> MaskedLM[T]:
    body, size = weights.after_prefix(PREFIXES, encoder.WORDS), facts.size(config, "embedding_size")
    return encoder.read_masked_lm(config, encoder.read_spec(config), weights, body, HEAD, "gelu", size)
