"""`model_type: gemma2`: bge-multilingual-gemma2. Names as in transformers/models/gemma2/modeling_gemma2.py.

Differences from Gemma: norms also after each half of a layer, capped attention scores, and every second layer attends
to a window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from vectord.checkpoints.config_keys import Harmless, harmless
from vectord.compute.networks import decoder, facts
from vectord.compute.networks.decoder import Family
from vectord.compute.networks.rotary import read_sliding
from vectord.compute.networks.transformer import Transformer, TransformerSpec
from vectord.compute.networks.weights import WeightReader
from vectord.compute.ops.base import Ops, T

classifier = decoder.classifier

HARMLESS: Mapping[str, Harmless] = {
    **decoder.HARMLESS,
    **harmless("transformers reads hidden_activation only", "hidden_act"),
    **harmless("only layers with a window read it, and this model has none", "sliding_window"),
    **harmless("only heads over the vocabulary read it", "final_logit_softcapping"),
}
HARMLESS_TENSORS = decoder.HARMLESS_TENSORS


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    spec, bias = _spec(config), facts.flag(config, "attention_bias", False)
    family = Family(
        qkv_bias=bias,
        out_bias=bias,
        windows=_windows(config, spec),
        rotary=decoder.read_decoder_rotary(config, spec),
        outer_norms=True,
        norm_offset=1.0,
    )
    return decoder.load_decoder(spec, family, weights, ops)


def head_rows(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], ids: Sequence[int]) -> T:
    facts.require(_with_default(config, "final_logit_softcapping", 30.0), "final_logit_softcapping", None)
    return decoder.head_rows(config, weights, ops, ids, tied=True)


def _spec(config: Mapping[str, Any]) -> TransformerSpec:
    facts.require(config, "use_bidirectional_attention", False)  # transformers' mask ignores it
    spec = decoder.read_spec(config, activation_key="hidden_activation")
    cap = _with_default(config, "attn_logit_softcapping", 50.0)
    return replace(
        spec,
        head_size=facts.size(config, "head_dim", 256),
        attention_scale=facts.size(config, "query_pre_attn_scalar", 256) ** -0.5,
        score_cap=None if None in cap.values() else facts.number(cap, "attn_logit_softcapping", 50.0),
        word_scale=spec.hidden_size**0.5,
    )


def _windows(config: Mapping[str, Any], spec: TransformerSpec) -> tuple[int | None, ...]:
    sliding = read_sliding(config, [i % 2 == 0 for i in range(spec.layers)])
    given = _with_default(config, "sliding_window", 4096)
    return tuple(decoder.read_window(given, causal=spec.causal) if slides else None for slides in sliding)


def _with_default(config: Mapping[str, Any], key: str, default: float) -> Mapping[str, Any]:
    """The key's value, or transformers' default. A null is a value: it turns the setting off."""
    return {key: config.get(key, default)}
