"""`model_type: roberta`, and XLM-R and CamemBERT with it: BGE-M3, multilingual E5, BGE rerankers.

The layers are BERT's. Names as in transformers/models/roberta/modeling_roberta.py; xlm_roberta.py and camembert.py
use these functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vectord.compute.networks import facts
from vectord.compute.networks.bert import TYPES, WORDS, encoder_layer, encoder_spec
from vectord.compute.networks.encoder import EncoderBody, EncoderSpec, EncoderWeights
from vectord.compute.networks.heads.projection import Projection
from vectord.compute.networks.heads.scores import Classifier, classify_first
from vectord.compute.networks.heads.splade import MaskedLM, output_words
from vectord.compute.networks.weights import WeightReader
from vectord.compute.ops.base import Ops, T
from vectord.errors import ModelUnavailable


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> EncoderBody[T]:
    """Return the encoder of a bare model ("") or of one under a head ("roberta."). Raises ModelUnavailable."""
    facts.require(config, "position_embedding_type", "absolute")
    spec, weights = _spec(config), _body(weights)
    width = spec.hidden_size
    first, positions = _first_position(config), facts.size(config, "max_position_embeddings")
    return EncoderBody(
        spec,
        EncoderWeights(
            words=weights.tensor(WORDS, spec.vocab_size, width),
            positions=weights.tensor(
                "embeddings.position_embeddings.weight", positions, width, rows=slice(first, positions)
            ),
            types=weights.tensor(TYPES, spec.types, width),
            norm=weights.norm("embeddings.LayerNorm", width),
            layers=tuple(encoder_layer(spec, weights, f"encoder.layer.{i}") for i in range(spec.layers)),
        ),
        ops,
    )


def classifier(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], labels: int) -> Classifier[T]:
    """Return the head of RobertaForSequenceClassification. Raises ModelUnavailable."""
    return classify_first(weights, facts.size(config, "hidden_size"), labels)


def masked_lm(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> MaskedLM[T]:
    """Return the head of RobertaForMaskedLM. Raises ModelUnavailable."""
    return lm_head(config, _spec(config), weights, _body(weights))


def lm_head(
    config: Mapping[str, Any], spec: EncoderSpec, weights: WeightReader[T], body: WeightReader[T]
) -> MaskedLM[T]:
    """Return the head under RoBERTa's names, which MPNet has too. Raises ModelUnavailable."""
    width = spec.hidden_size
    dense, norm = weights.linear("lm_head.dense", width, width), weights.norm("lm_head.layer_norm", width)
    return MaskedLM(
        transform=Projection(dense, "gelu", norm, spec.norm_eps),
        words=output_words(config, weights, "lm_head.decoder.weight", body, WORDS, (spec.vocab_size, width)),
        bias=weights.tensor(weights.first_of("lm_head.decoder.bias", "lm_head.bias"), spec.vocab_size),
    )


def _body(weights: WeightReader[T]) -> WeightReader[T]:
    return weights.after_prefix(("", "roberta."), WORDS)


def _spec(config: Mapping[str, Any]) -> EncoderSpec:
    spec, first = encoder_spec(config, types=facts.size(config, "type_vocab_size")), _first_position(config)
    if spec.max_tokens <= first:
        raise ModelUnavailable(
            f"config.json: max_position_embeddings {spec.max_tokens} leaves no room after pad_token_id {first - 1}"
        )
    return replace(spec, max_tokens=spec.max_tokens - first)


def _first_position(config: Mapping[str, Any]) -> int:
    """The first token's row in the position table: positions count from after the padding token's id."""
    return facts.size(config, "pad_token_id", 1, at_least=0) + 1
