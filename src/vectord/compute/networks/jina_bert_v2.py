"""JinaBERT v2: jina-embeddings-v2 and jina-reranker-v1. A BERT with ALiBi instead of positions: distance lowers scores.

checkpoints/reader.py chooses it: config.json has `model_type: bert` and `position_embedding_type: alibi`. transformers
has no class for it; names and formulas come from the models' descriptions and other servers. There are two layouts,
distinguished by their tensors: the common one, and that of the code models, with norms of queries and keys and one
more norm in each layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from vectord.checkpoints.config_keys import harmless
from vectord.compute.networks import encoder
from vectord.compute.networks.architecture import LayerNames
from vectord.compute.networks.bert import Bert
from vectord.compute.networks.transformer import Transformer, TransformerSpec
from vectord.compute.ops.base import Activation, T
from vectord.errors import ModelUnavailable

GATED: Mapping[str, Activation] = {"geglu": "gelu", "reglu": "relu"}  # feed_forward_type
MAX_BIASES = 2**21  # heads times positions: 16 MB, 20 times the size of jina-embeddings-v2-base


class JinaBert(Bert[T]):
    HARMLESS = {
        **encoder.HARMLESS,
        **harmless("the pooling of its own encode, which the Pooling module has too", "emb_pooler", "mean"),
        **harmless("the tokenizer decides", "model_max_length"),
    }

    @cached_property
    def forward(self) -> str:
        return self.choice("feed_forward_type", (*GATED, "original"), "original")

    def read_spec(self) -> TransformerSpec:
        spec = super().read_spec()
        return replace(spec, activation=GATED.get(self.forward, spec.activation))

    def load(self) -> Transformer[T]:
        self.require("position_embedding_type", "alibi")
        heads, most = self.spec.heads, self.spec.max_tokens
        if heads * most > MAX_BIASES:
            raise ModelUnavailable(
                f"config.json: {heads} heads of {most} positions; together at most {MAX_BIASES} are served"
            )
        bias = self.body.constant("attention_bias", -slopes(heads)[:, None] * abs(np.arange(1 - most, most)))
        return self.read(self._names(gated=self.forward in GATED), attention_bias=bias)

    def _names(self, *, gated: bool) -> LayerNames:
        if "encoder.layer.0.layer_norm_1.weight" in self.body:
            return replace(
                self.NAMES,
                query_norm="attention.self.layer_norm_q",
                key_norm="attention.self.layer_norm_k",
                input_norm="layer_norm_1",
                mlp="mlp.up_gated_layer" if gated else ("mlp.up_layer",),
                mlp_bias=False,
                down="mlp.down_layer",
                output_norm="layer_norm_2",
            )
        if not gated:
            return self.NAMES
        mlp = {"mlp": "mlp.gated_layers", "gate_first": True, "mlp_bias": False}
        return replace(self.NAMES, **mlp, down="mlp.wo", output_norm="mlp.layernorm")


def slopes(heads: int) -> npt.NDArray[np.float64]:
    """Return the decrease of a score a token of distance, (heads,). Source: the paper on ALiBi and its own code.

    For 8 heads: 1/2, 1/4 ... 1/256. For other numbers: those of the next lower power, then the first,
    third, fifth ... of twice that power.
    """
    power = 1 << (heads.bit_length() - 1)
    first = 2.0 ** (-8 * np.arange(1, power + 1) / power)
    between = 2.0 ** (-8 * np.arange(1, 2 * power + 1, 2) / (2 * power))
    return np.concatenate([first, between])[:heads]
