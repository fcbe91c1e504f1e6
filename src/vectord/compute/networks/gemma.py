"""`model_type: gemma` (bge-reranker-v2-gemma), `gemma2` (bge-multilingual-gemma2), `gemma3_text` (EmbeddingGemma) and
`bigemma3_text` (BidirLM), which is bidirectional by default. Names as in transformers/models/gemma, gemma2 and gemma3.

Differences from Llama: norm weights stored as difference from 1, and word vectors scaled by the root of their width.
From the second generation on, norms also after each half of a layer, and layers that attend to a window. The second
caps the scores of attention; in the third, layers with a window have rotary positions of their own, which turn faster.
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
from vectord.compute.ops.base import Activation, Ops, T
from vectord.errors import ModelUnavailable

classifier = decoder.classifier

BIDIRLM = "bigemma3_text"

HARMLESS: Mapping[str, Harmless] = {
    **decoder.HARMLESS,
    **harmless("of gemma2 and later, transformers reads hidden_activation only", "hidden_act"),
    **harmless("a copy of sliding_window_pattern, which transformers never reads", "_sliding_window_pattern"),
    **harmless("read by layers with a window only; this model has none", "sliding_window"),
    **harmless("only heads over the vocabulary read it", "final_logit_softcapping"),
}
HARMLESS_TENSORS = decoder.HARMLESS_TENSORS
# The first generation's class reads "gelu" as the approximation too: released configurations have the wrong name.
_ACTIVATIONS: Mapping[str, Activation] = {**facts.ACTIVATIONS, "gelu": "gelu_tanh"}


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    return decoder.load_decoder(*read(config), weights, ops)


def read(config: Mapping[str, Any]) -> tuple[TransformerSpec, Family]:
    """Return the facts of a generation: of the third, if model_type names neither of the others."""
    spec, family = {"gemma": _first, "gemma2": _second}.get(config["model_type"], _third)(config)
    bias = facts.flag(config, "attention_bias", False)
    family = replace(family, qkv_bias=bias, out_bias=bias, norm_offset=1.0)
    return replace(spec, word_scale=spec.hidden_size**0.5), family


def head_rows(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], ids: Sequence[int]) -> T:
    default = 30.0 if config["model_type"] == "gemma2" else None
    facts.require(_with_default(config, "final_logit_softcapping", default), "final_logit_softcapping", None)
    return decoder.head_rows(config, weights, ops, ids, tied=True)


def _first(config: Mapping[str, Any]) -> tuple[TransformerSpec, Family]:
    facts.require(config, "use_bidirectional_attention", False)  # transformers' mask ignores it
    spec = decoder.read_spec(config, activations=_ACTIVATIONS)
    return spec, Family(windows=(None,) * spec.layers, rotary=decoder.read_decoder_rotary(config, spec))


def _second(config: Mapping[str, Any]) -> tuple[TransformerSpec, Family]:
    facts.require(config, "use_bidirectional_attention", False)  # transformers' mask ignores it
    spec = decoder.read_spec(config, activation_key="hidden_activation")
    cap = _with_default(config, "attn_logit_softcapping", 50.0)
    spec = replace(
        spec,
        head_size=facts.size(config, "head_dim", 256),
        attention_scale=facts.size(config, "query_pre_attn_scalar", 256) ** -0.5,
        score_cap=None if None in cap.values() else facts.number(cap, "attn_logit_softcapping", 50.0),
    )
    sliding = read_sliding(config, [i % 2 == 0 for i in range(spec.layers)])
    given = _with_default(config, "sliding_window", 4096)
    windows = tuple(decoder.read_window(given, causal=spec.causal) if slides else None for slides in sliding)
    return spec, Family(windows=windows, rotary=decoder.read_decoder_rotary(config, spec), outer_norms=True)


def _third(config: Mapping[str, Any]) -> tuple[TransformerSpec, Family]:
    facts.require(config, "attn_logit_softcapping", None)
    facts.require(config, "is_causal", True)
    spec = decoder.read_spec(config, activation_key="hidden_activation")
    spec = replace(
        spec,
        causal=not facts.flag(config, "use_bidirectional_attention", config["model_type"] == BIDIRLM),
        attention_scale=facts.size(config, "query_pre_attn_scalar", 256) ** -0.5,
    )
    rotary, sliding_rotary = _rotary(config, spec)
    return spec, Family(
        head_norms=True,
        windows=_windows(config, spec),
        rotary=rotary,
        sliding_rotary=sliding_rotary,
        outer_norms=True,
    )


def _windows(config: Mapping[str, Any], spec: TransformerSpec) -> tuple[int | None, ...]:
    """Return AttentionSpec.window of each layer. sliding_window counts the token itself in a causal model, except
    BidirLM, and the tokens on both sides in others."""
    usual = facts.size(config, "sliding_window_pattern", 6)  # each 6th layer attends to all
    sliding = read_sliding(config, [(i + 1) % usual != 0 for i in range(spec.layers)])
    if not any(sliding):
        return (None,) * spec.layers
    window = facts.size(config, "sliding_window")
    if not spec.causal:
        window //= 2
    elif config["model_type"] != BIDIRLM:
        window -= 1
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


def _with_default(config: Mapping[str, Any], key: str, default: float | None) -> Mapping[str, Any]:
    """The key's value, or transformers' default. A null is a value: it turns the setting off."""
    return {key: config.get(key, default)}
