"""`model_type: t5` and `mt5`: the encoder, of sentence-t5, gtr. Names as in transformers/models/t5/modeling_t5.py.

Each attention score gets a bias by the distance of query and key, which the first layer has for all. There is no table
of positions, so a text may be of any length.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from vectord.checkpoints.config_keys import Harmless, harmless
from vectord.compute.networks import encoder, facts
from vectord.compute.networks.mpnet import buckets
from vectord.compute.networks.transformer import (
    Attention,
    Mlp,
    Transformer,
    TransformerLayer,
    TransformerSpec,
    TransformerWeights,
)
from vectord.compute.networks.weights import HarmlessTensors, WeightReader
from vectord.compute.ops.base import Activation, Ops, T
from vectord.errors import ModelUnavailable

MAX_TOKENS = 8192  # of one text: bounds the table of biases

# feed_forward_proj: the activation, its name in dense_act_fn, and whether the MLP is gated.
_FORWARD: Mapping[str, tuple[Activation, str, bool]] = {
    "relu": ("relu", "relu", False),
    "gated-gelu": ("gelu_tanh", "gelu_new", True),
    "gated-silu": ("silu", "silu", True),
}
_BIAS = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"

HARMLESS: Mapping[str, Harmless] = {
    **encoder.HARMLESS,
    **harmless("only the encoder is computed", "is_encoder_decoder num_decoder_layers scale_decoder_outputs"),
    **harmless("training only", "dropout_rate"),
}
HARMLESS_TENSORS: Collection[HarmlessTensors] = (
    HarmlessTensors("one table under two names", r"shared\.weight|encoder\.embed_tokens\.weight"),
    HarmlessTensors("the half that generates text", r"decoder\..+|lm_head\.weight"),
)


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    facts.require(config, "is_decoder", False)
    activation, saved_as, gated = _FORWARD[facts.choice(config, "feed_forward_proj", tuple(_FORWARD), "relu")]
    facts.require(config, "dense_act_fn", saved_as)
    facts.require(config, "is_gated_act", gated)
    heads = facts.size(config, "num_heads")
    spec = TransformerSpec(
        vocab_size=facts.size(config, "vocab_size"),
        max_tokens=MAX_TOKENS,
        hidden_size=facts.size(config, "d_model"),
        intermediate_size=facts.size(config, "d_ff"),
        layers=facts.size(config, "num_layers", at_most=1024),
        heads=heads,
        head_size=facts.size(config, "d_kv"),
        activation=activation,
        norm_eps=facts.epsilon(config, "layer_norm_epsilon"),
        rms=True,
        norm_first=True,
        attention_scale=1.0,
    )
    count = facts.size(config, "relative_attention_num_buckets", 32, at_least=4)
    farthest = facts.size(config, "relative_attention_max_distance", 128)
    if count % 4 or farthest <= count // 4:
        raise ModelUnavailable(
            f"config.json: relative_attention_num_buckets {count} must be a multiple of 4, and less than 4 times "
            f"relative_attention_max_distance {farthest}"
        )
    biases = weights.array(_BIAS, count, spec.heads)[
        buckets(np.arange(1 - spec.max_tokens, spec.max_tokens), count, farthest)
    ]
    words = weights.first_of("encoder.embed_tokens.weight", "shared.weight")
    return Transformer(
        spec,
        TransformerWeights(
            words=weights.tensor(words, spec.vocab_size, spec.hidden_size),
            layers=tuple(_layer(spec, weights.under(f"encoder.block.{i}."), gated) for i in range(spec.layers)),
            final_norm=weights.norm("encoder.final_layer_norm", spec.hidden_size, bias=False),
            attention_bias=weights.constant("attention_bias", biases.T),
        ),
        ops,
    )


def _layer(spec: TransformerSpec, weights: WeightReader[T], gated: bool) -> TransformerLayer[T]:
    attention, mlp = weights.under("layer.0.SelfAttention."), weights.under("layer.1.DenseReluDense.")
    width, inner = spec.hidden_size, spec.intermediate_size
    query, key, value = (attention.linear(name, width, spec.query_width, bias=False) for name in "qkv")
    return TransformerLayer(
        attention_norm=weights.norm("layer.0.layer_norm", width, bias=False),
        attention=Attention(
            query=query, key=key, value=value, out=attention.linear("o", spec.query_width, width, bias=False)
        ),
        output_norm=weights.norm("layer.1.layer_norm", width, bias=False),
        mlp=Mlp(
            gate=mlp.linear("wi_0", width, inner, bias=False) if gated else None,
            up=mlp.linear("wi_1" if gated else "wi", width, inner, bias=False),
            down=mlp.linear("wo", inner, width, bias=False),
        ),
    )
