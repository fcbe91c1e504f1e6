"""`model_type: mpnet`: all-mpnet-base-v2 and related models. Names as in transformers/models/mpnet/modeling_mpnet.py.

Each attention score gets a bias that depends on the distance of query and key, with 32 buckets a head.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from vectord.checkpoints.config_keys import Harmless
from vectord.compute.networks import encoder, facts
from vectord.compute.networks.heads import Classifier, MaskedLM, classify_first
from vectord.compute.networks.roberta import HEAD
from vectord.compute.networks.transformer import Transformer, TransformerSpec
from vectord.compute.networks.weights import POOLER, HarmlessTensors, WeightReader
from vectord.compute.ops.base import Ops, T
from vectord.errors import ModelUnavailable

FIRST_POSITION = 2  # first position: transformers counts from after padding's id 1 for every config
BUCKETS = 32
FARTHEST = 128  # larger distances share one bucket

NAMES = encoder.LayerNames(
    prefix="encoder.layer",
    attention=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
    attention_out="attention.attn.o",
    attention_norm="attention.LayerNorm",
    mlp=("intermediate.dense",),
    down="output.dense",
    output_norm="output.LayerNorm",
)

HARMLESS: Mapping[str, Harmless] = encoder.HARMLESS
HARMLESS_TENSORS: Collection[HarmlessTensors] = (
    *encoder.HARMLESS_TENSORS,
    POOLER,
    *encoder.LM_HEAD,
    encoder.DENSE_CLASSIFIER,
)


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    facts.require(config, "relative_attention_num_buckets", BUCKETS)
    spec, weights = _spec(config), _body(weights)
    table = weights.array("encoder.relative_attention_bias.weight", BUCKETS, spec.heads)
    distances = np.arange(1 - spec.max_tokens, spec.max_tokens)
    bias = weights.constant("attention_bias", table[buckets(distances)].T)  # (heads, 2 * max_tokens - 1)
    return encoder.read_encoder(spec, weights, ops, NAMES, first_position=FIRST_POSITION, attention_bias=bias)


def classifier(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], labels: int) -> Classifier[T]:
    return classify_first(weights, facts.size(config, "hidden_size"), labels)


def masked_lm(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> MaskedLM[T]:
    return encoder.read_masked_lm(config, _spec(config), weights, _body(weights), HEAD, "gelu")


def buckets(distances: npt.NDArray[np.int64], count: int = BUCKETS, farthest: int = FARTHEST) -> npt.NDArray[np.int64]:
    """The bucket of each distance of key less query, as T5 has it: the first half up to the query, the others after it.

    Distances below count / 4 have one bucket each, larger ones share ever wider buckets. Computed in float32 in
    transformers' order: with the defaults buckets begin at 16, 32 and 64, and another rounding would move these.
    """
    half, exact = count // 2, count // 4
    distance = abs(distances)
    octaves = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact))
    wide = exact + (octaves / np.float32(math.log(farthest / exact)) * np.float32(half - exact)).astype(np.int64)
    return np.where(distances > 0, half, 0) + np.where(distance < exact, distance, np.minimum(wide, half - 1))


def _body(weights: WeightReader[T]) -> WeightReader[T]:
    return weights.after_prefix(("", "mpnet."), encoder.WORDS)


def _spec(config: Mapping[str, Any]) -> TransformerSpec:
    spec = encoder.read_spec(config)
    if spec.max_tokens <= FIRST_POSITION:
        raise ModelUnavailable(f"config.json: max_position_embeddings must be above {FIRST_POSITION}")
    return replace(spec, max_tokens=spec.max_tokens - FIRST_POSITION)
