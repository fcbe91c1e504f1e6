"""JinaBERT v2: jina-embeddings-v2 and jina-reranker-v1. A BERT with ALiBi instead of positions: distance lowers scores.

checkpoints/reader.py chooses it: config.json has `model_type: bert` and `position_embedding_type: alibi`. transformers
has no class for it; names and formulas come from the models' descriptions and other servers. There are two layouts,
distinguished by their tensors: the common one, and that of the code models, with norms of queries and keys and one
more norm in each layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from vectord.checkpoints.config_keys import Harmless, harmless
from vectord.compute.networks import encoder, facts
from vectord.compute.networks.bert import HARMLESS_TENSORS, NAMES, body, classifier, masked_lm
from vectord.compute.networks.encoder import LayerNames, read_encoder, read_spec
from vectord.compute.networks.transformer import Transformer
from vectord.compute.networks.weights import WeightReader
from vectord.compute.ops.base import Activation, Ops, T
from vectord.errors import ModelUnavailable

__all__ = ["HARMLESS_TENSORS", "classifier", "load", "masked_lm", "slopes"]  # the heads are BERT's

GATED: Mapping[str, Activation] = {"geglu": "gelu", "reglu": "relu"}  # feed_forward_type
HARMLESS: Mapping[str, Harmless] = {
    **encoder.HARMLESS,
    **harmless("the pooling of its own encode, which the Pooling module has too", "emb_pooler", "mean"),
    **harmless("the tokenizer decides", "model_max_length"),
}
MAX_BIASES = 2**21  # heads times positions: 16 MB, 20 times the size of jina-embeddings-v2-base


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    facts.require(config, "position_embedding_type", "alibi")
    spec, weights = read_spec(config, types=facts.size(config, "type_vocab_size")), body(weights)
    forward = facts.choice(config, "feed_forward_type", (*GATED, "original"), "original")
    if forward in GATED:
        spec = replace(spec, activation=GATED[forward])
    names = _names(weights, gated=forward in GATED)
    if spec.heads * spec.max_tokens > MAX_BIASES:
        raise ModelUnavailable(
            f"config.json: {spec.heads} heads of {spec.max_tokens} positions; together at most {MAX_BIASES} are served"
        )
    distances = abs(np.arange(1 - spec.max_tokens, spec.max_tokens))
    bias = weights.constant("attention_bias", -slopes(spec.heads)[:, None] * distances)
    return read_encoder(spec, weights, ops, names, attention_bias=bias)


def slopes(heads: int) -> npt.NDArray[np.float64]:
    """Return the decrease of a score a token of distance, (heads,). Source: the paper on ALiBi and its own code.

    For 8 heads: 1/2, 1/4 ... 1/256. For other numbers: those of the next lower power, then the first,
    third, fifth ... of twice that power.
    """
    power = 1 << (heads.bit_length() - 1)
    first = 2.0 ** (-8 * np.arange(1, power + 1) / power)
    between = 2.0 ** (-8 * np.arange(1, 2 * power + 1, 2) / (2 * power))
    return np.concatenate([first, between])[:heads]


def _names(weights: WeightReader[T], *, gated: bool) -> LayerNames:
    if "encoder.layer.0.layer_norm_1.weight" in weights:
        return replace(
            NAMES,
            query_norm="attention.self.layer_norm_q",
            key_norm="attention.self.layer_norm_k",
            input_norm="layer_norm_1",
            mlp="mlp.up_gated_layer" if gated else ("mlp.up_layer",),
            mlp_bias=False,
            down="mlp.down_layer",
            output_norm="layer_norm_2",
        )
    if not gated:
        return NAMES
    return replace(
        NAMES, mlp="mlp.gated_layers", gate_first=True, mlp_bias=False, down="mlp.wo", output_norm="mlp.layernorm"
    )
