"""`model_type: roberta`, `xlm-roberta` and `camembert`: BGE-M3, multilingual E5, BGE rerankers.

The layers are BERT's. Names as in transformers/models/roberta/modeling_roberta.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vectord.checkpoints.accounting import Harmless
from vectord.compute.networks import encoder, facts
from vectord.compute.networks.bert import NAMES
from vectord.compute.networks.heads import Classifier, MaskedLM, classify_first
from vectord.compute.networks.transformer import Transformer, TransformerSpec
from vectord.compute.networks.weights import WeightReader
from vectord.compute.ops.base import Ops, T
from vectord.errors import ModelUnavailable

# MPNet has the same.
HEAD = encoder.HeadNames(
    dense="lm_head.dense", norm="lm_head.layer_norm", decoder="lm_head.decoder", bias="lm_head.bias"
)


HARMLESS: Mapping[str, Harmless] = encoder.HARMLESS


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    """Return the encoder of a bare model ("") or of one under a head ("roberta."). Raises ModelUnavailable."""
    facts.require(config, "position_embedding_type", "absolute")
    return encoder.read_encoder(_spec(config), _body(weights), ops, NAMES, first_position=_first_position(config))


def classifier(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], labels: int) -> Classifier[T]:
    """Return the head of RobertaForSequenceClassification. Raises ModelUnavailable."""
    return classify_first(weights, facts.size(config, "hidden_size"), labels)


def masked_lm(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> MaskedLM[T]:
    """Return the head of RobertaForMaskedLM. Raises ModelUnavailable."""
    return encoder.read_masked_lm(config, _spec(config), weights, _body(weights), HEAD, "gelu")


def _body(weights: WeightReader[T]) -> WeightReader[T]:
    return weights.after_prefix(("", "roberta."), encoder.WORDS)


def _spec(config: Mapping[str, Any]) -> TransformerSpec:
    spec, first = encoder.read_spec(config, types=facts.size(config, "type_vocab_size")), _first_position(config)
    if spec.max_tokens <= first:
        raise ModelUnavailable(
            f"config.json: max_position_embeddings {spec.max_tokens} leaves no room after pad_token_id {first - 1}"
        )
    return replace(spec, max_tokens=spec.max_tokens - first)


def _first_position(config: Mapping[str, Any]) -> int:
    """The first token's row in the position table: positions count from after the padding token's id."""
    return facts.size(config, "pad_token_id", 1, at_least=0) + 1
