"""`model_type: lfm2`: LFM2-ColBERT, and LFM2.5-Embedding and LFM2.5-ColBERT, which are bidirectional.

Names as in transformers/models/lfm2/modeling_lfm2.py. Most layers have a short convolution instead of attention. Source
of the bidirectional form: Liquid's own class Lfm2BidirectionalModel (Lfm2BidirectionalConfig of later transformers).

The convolution sees the expansion tokens of ColBERT queries, to which no token attends, as in Liquid's code and in
transformers 4, with which the models were trained; transformers 5 replaces them by zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vectord.checkpoints.config_keys import Harmless, harmless
from vectord.compute.networks import decoder, facts
from vectord.compute.networks.rotary import CosSin, read_plain_rotary, rotary_table
from vectord.compute.networks.transformer import (
    Attention,
    Mlp,
    ShortConvolution,
    Transformer,
    TransformerLayer,
    TransformerSpec,
    TransformerWeights,
)
from vectord.compute.networks.weights import WeightReader
from vectord.compute.ops.base import Ops, T
from vectord.errors import ModelUnavailable

PREFIXES = ("", "model.", "lfm2.")
_KINDS = ("full_attention", "conv")

HARMLESS: Mapping[str, Harmless] = {
    **decoder.HARMLESS,
    **harmless("transformers never reads it", "block_dim block_norm_eps conv_dim conv_dim_out num_heads use_pos_enc"),
    **harmless("the usual network", "block_use_swiglu", True),
    **harmless(
        "training only", "block_mlp_init_scale block_out_init_scale block_use_xavier_init conv_use_xavier_init theta"
    ),
    **harmless("speed and memory only", "disable_flash_attention"),
    **harmless("of padding, which a packed batch has none of", "conv_zero_padding"),
    **harmless("only heads over the vocabulary read it", "tie_embedding"),
    **harmless("layer_types or block_ff_dim is read instead", "full_attn_idxs intermediate_size"),
    **harmless("of convolutions, which the model has none of", "conv_L_cache conv_bias"),
    **harmless("only with block_auto_adjust_ff_dim", "block_ffn_dim_multiplier block_multiple_of"),
}
HARMLESS_TENSORS = decoder.HARMLESS_TENSORS


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    spec, weights = _spec(config), weights.after_prefix(PREFIXES, decoder.WORDS)
    rotary = read_plain_rotary(config, theta=1e6, positions=spec.max_tokens)
    table = rotary_table(weights, rotary, spec.head_size, spec.max_tokens)
    layers = []
    width, inner = spec.hidden_size, spec.intermediate_size
    kinds, attending = config.get("layer_types"), config.get("full_attn_idxs")
    if kinds is None:
        indices = range(spec.layers) if attending is None else attending
        kinds = [_KINDS[i not in indices] for i in range(spec.layers)]
    elif not isinstance(kinds, list) or len(kinds) != spec.layers or any(kind not in _KINDS for kind in kinds):
        raise ModelUnavailable(f"config.json: layer_types must be {spec.layers} times one of {', '.join(_KINDS)}")
    for i, kind in enumerate(kinds):
        layer = weights.under(f"layers.{i}.")
        mixer = _attention(spec, layer, table) if kind == "full_attention" else _convolution(config, spec, layer)
        layers.append(
            TransformerLayer(
                attention=mixer,
                attention_norm=layer.norm("operator_norm", width, bias=False),
                mlp=Mlp(
                    gate=layer.linear("feed_forward.w1", width, inner, bias=False),
                    up=layer.linear("feed_forward.w3", width, inner, bias=False),
                    down=layer.linear("feed_forward.w2", inner, width, bias=False),
                ),
                output_norm=layer.norm("ffn_norm", width, bias=False),
            )
        )
    return Transformer(
        spec,
        TransformerWeights(
            words=weights.tensor(decoder.WORDS, spec.vocab_size, width),
            layers=tuple(layers),
            final_norm=weights.norm("embedding_norm", width, bias=False),
        ),
        ops,
    )


def _spec(config: Mapping[str, Any]) -> TransformerSpec:
    facts.require(config, "is_causal", True)
    heads = facts.heads(config, "num_attention_heads", "hidden_size")
    width = facts.size(config, "hidden_size")
    # As Lfm2MLP computes it; block_ff_dim is an older name of intermediate_size.
    inner = facts.size(config, "block_ff_dim" if "block_ff_dim" in config else "intermediate_size")
    if facts.flag(config, "block_auto_adjust_ff_dim", True):
        multiple = facts.size(config, "block_multiple_of", 256)
        inner = 2 * inner // 3
        if "block_ffn_dim_multiplier" not in config or config["block_ffn_dim_multiplier"] is not None:
            inner = int(facts.number(config, "block_ffn_dim_multiplier", 1.0) * inner)
            inner = multiple * -(-inner // multiple)
    classes = config.get("architectures") or [""]
    bidirectional = config["model_type"] == "lfm2_bidirectional" or str(classes[0]).startswith("Lfm2Bidirectional")
    return TransformerSpec(
        vocab_size=facts.size(config, "vocab_size"),
        max_tokens=facts.size(config, "max_position_embeddings", 128_000),
        hidden_size=width,
        intermediate_size=inner,
        layers=facts.size(config, "num_hidden_layers", at_most=1024),
        heads=heads,
        kv_heads=facts.key_heads(config, heads, 8),
        head_size=facts.size(config, "head_dim", width // heads),
        activation="silu",
        norm_eps=facts.epsilon(config, "norm_eps"),
        rms=True,
        norm_first=True,
        causal=not bidirectional,
    )


def _attention(spec: TransformerSpec, layer: WeightReader[T], table: CosSin[T]) -> Attention[T]:
    width, weights = spec.hidden_size, layer.under("self_attn.")
    return Attention(
        query=weights.linear("q_proj", width, spec.query_width, bias=False),
        key=weights.linear("k_proj", width, spec.key_width, bias=False),
        value=weights.linear("v_proj", width, spec.key_width, bias=False),
        out=weights.linear("out_proj", spec.query_width, width, bias=False),
        query_norm=weights.norm("q_layernorm", spec.head_size, bias=False),
        key_norm=weights.norm("k_layernorm", spec.head_size, bias=False),
        rotary=table,
    )


def _convolution(config: Mapping[str, Any], spec: TransformerSpec, layer: WeightReader[T]) -> ShortConvolution[T]:
    width, weights, bias = spec.hidden_size, layer.under("conv."), facts.flag(config, "conv_bias", False)
    size = facts.size(config, "conv_L_cache", 3, at_most=64)
    first = 1 - size if spec.causal else -(size // 2)
    before, after, value = weights.linears("in_proj", width, width, 3, bias=bias)
    taps = weights.array("conv.weight", width, 1, size)
    return ShortConvolution(
        before=before,
        after=after,
        value=value,
        taps=tuple((first + j, weights.constant(f"conv.tap{j}", taps[:, :, j].T)) for j in range(size)),
        bias=weights.constant("conv.bias", weights.array("conv.bias", width)[None]) if bias else None,
        out=weights.linear("out_proj", width, width, bias=bias),
    )
