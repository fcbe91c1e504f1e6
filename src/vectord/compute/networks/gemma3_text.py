"""`model_type: gemma3_text` (EmbeddingGemma) and `bigemma3_text` (BidirLM), which is bidirectional by default.

Names as in transformers/models/gemma3/modeling_gemma3.py.

Differences from Llama: norms also after each half of a layer, norm weights stored as difference from 1, and two
kinds of layers. Most attend to a window, with fast rotary positions; some attend to all, with slow ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from vectord.checkpoints.config_keys import Harmless, harmless
from vectord.compute.networks import decoder, facts
from vectord.compute.networks.decoder import Family
from vectord.compute.networks.rotary import LAYER_KINDS, Rotary, read_layer_rotary, read_sliding
from vectord.compute.networks.transformer import Transformer, TransformerSpec
from vectord.compute.networks.weights import WeightReader
from vectord.compute.ops.base import Ops, T
from vectord.errors import ModelUnavailable

classifier = decoder.classifier

BIDIRLM = "bigemma3_text"

HARMLESS: Mapping[str, Harmless] = {
    **decoder.HARMLESS,
    **harmless("a copy of sliding_window_pattern, which transformers never reads", "_sliding_window_pattern"),
    **harmless("read by layers with a window only; this model has none", "sliding_window"),
    **harmless("only heads over the vocabulary read it", "final_logit_softcapping"),
}
HARMLESS_TENSORS = decoder.HARMLESS_TENSORS


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    spec, bias = _spec(config), facts.flag(config, "attention_bias", False)
    rotary, sliding_rotary = _rotary(config, spec)
    family = Family(
        qkv_bias=bias,
        out_bias=bias,
        head_norms=True,
        windows=_windows(config, spec),
        rotary=rotary,
        sliding_rotary=sliding_rotary,
        outer_norms=True,
        norm_offset=1.0,
    )
    return decoder.load_decoder(spec, family, weights, ops)


def head_rows(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], ids: Sequence[int]) -> T:
    facts.require(config, "final_logit_softcapping", None)
    return decoder.head_rows(config, weights, ops, ids, tied=True)


def _spec(config: Mapping[str, Any]) -> TransformerSpec:
    facts.require(config, "attn_logit_softcapping", None)
    facts.require(config, "is_causal", True)
    spec = decoder.read_spec(config, activation_key="hidden_activation")
    return replace(
        spec,
        causal=not facts.flag(config, "use_bidirectional_attention", config["model_type"] == BIDIRLM),
        attention_scale=facts.size(config, "query_pre_attn_scalar", 256) ** -0.5,
        word_scale=spec.hidden_size**0.5,
    )


def _windows(config: Mapping[str, Any], spec: TransformerSpec) -> tuple[int | None, ...]:
    """AttentionSpec.window of each layer: half of sliding_window on each side; if causal, as for others, and one more
    for BidirLM."""
    usual = facts.size(config, "sliding_window_pattern", 6)  # each 6th layer attends to all
    sliding = read_sliding(config, [(i + 1) % usual != 0 for i in range(spec.layers)])
    if not any(sliding):
        return (None,) * spec.layers
    window = facts.size(config, "sliding_window")
    window = window // 2 if not spec.causal else window if config["model_type"] == BIDIRLM else window - 1
    return tuple(window if slides else None for slides in sliding)


def _rotary(config: Mapping[str, Any], spec: TransformerSpec) -> tuple[Rotary, Rotary]:
    """The rotary positions of full and sliding layers. rope_scaling, from before transformers 5, changes the former."""
    full, sliding = LAYER_KINDS
    scaling = facts.section(config, "rope_scaling")
    if scaling.get("type", "default") != "default" and "rope_type" not in scaling:
        raise ModelUnavailable(
            "config.json: rope_scaling.type is read by transformers 4 and ignored by 5; name it rope_type"
        )
    parameters = facts.section(config, "rope_parameters")
    merged = {"rope_parameters": {**parameters, full: {**facts.section(parameters, full), **scaling}}}
    theta = facts.number(config, "rope_theta", 1e6)
    local_theta = facts.number(config, "rope_local_base_freq", 1e4)
    return (
        read_layer_rotary(merged, full, theta=theta, positions=spec.max_tokens),
        read_layer_rotary(merged, sliding, theta=local_theta, positions=spec.max_tokens),
    )
