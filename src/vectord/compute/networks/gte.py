"""`model_type: gte`, and `new`, its former name: GTE v1.5, multilingual GTE, Arctic Embed v2.

Tensors under the models' own names, and under those of transformers/models/gte.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from vectord.checkpoints.config_keys import Harmless, harmless
from vectord.compute.networks import encoder, facts
from vectord.compute.networks.heads import Classifier, MaskedLM, classify_pooled
from vectord.compute.networks.rotary import LEAST_FACTOR, Rotary, read_plain_rotary, rotary_table
from vectord.compute.networks.transformer import Transformer, TransformerSpec
from vectord.compute.networks.weights import FREQUENCIES, POOLER, HarmlessTensors, WeightReader
from vectord.compute.ops.base import Ops, T

ONLY: Mapping[str, object] = {  # other values would be another network
    "position_embedding_type": "rope",
    "layer_norm_type": "layer_norm",
    "logn_attention_scale": False,
    "pack_qkv": True,
}
HARMLESS: Mapping[str, Harmless] = {
    **encoder.HARMLESS,
    **harmless("speed only", "unpad_inputs use_memory_efficient_attention"),
    **harmless("only with logn_attention_scale", "logn_attention_clip1"),
}
HARMLESS_TENSORS: Collection[HarmlessTensors] = (*encoder.HARMLESS_TENSORS, POOLER, *encoder.LM_HEAD, FREQUENCIES)
NAMES = encoder.LayerNames(
    prefix="encoder.layer",
    attention="attention.qkv_proj",
    attention_out="attention.o_proj",
    attention_norm="attn_ln",
    mlp="mlp.up_gate_proj",
    down="mlp.down_proj",
    output_norm="mlp_ln",
    mlp_bias=False,
)


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    spec, weights = _spec(config), _body(weights)
    theta, scaling = facts.number(config, "rope_theta", 160_000.0), facts.section(config, "rope_scaling")
    if scaling.get("type") == "ntk":
        facts.require(scaling, "mixed_b", None)
        factor = facts.number(scaling, "factor", 1.0, at_least=LEAST_FACTOR)
        # Fixed at every length: a larger base, and slightly lower frequencies.
        turns = Rotary(theta * factor, factor=factor ** (2 / spec.head_size))
    else:
        turns = read_plain_rotary(config, theta=theta, positions=spec.max_tokens)
    rotary = rotary_table(weights, turns, spec.head_size, spec.max_tokens)
    names = encoder.TRANSFORMERS_NAMES if "layers.0.self_attn.q_proj.weight" in weights else NAMES
    return encoder.read_encoder(spec, weights, ops, names, rotary=rotary)


def classifier(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], labels: int) -> Classifier[T]:
    return classify_pooled(_body(weights), weights, facts.size(config, "hidden_size"), labels)


def masked_lm(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> MaskedLM[T]:
    norm = "lm_head.norm" if "lm_head.norm.weight" in weights else "lm_head.layer_norm"
    names = encoder.HeadNames(dense="lm_head.dense", norm=norm, decoder="lm_head.decoder")
    return encoder.read_masked_lm(config, _spec(config), weights, _body(weights), names, "gelu")


def _body(weights: WeightReader[T]) -> WeightReader[T]:
    return weights.after_prefix(("", "gte.", "new."), encoder.WORDS)


def _spec(config: Mapping[str, Any]) -> TransformerSpec:
    for key, only in ONLY.items():
        facts.require(config, key, only)
    return encoder.read_spec(config, types=facts.size(config, "type_vocab_size", at_least=0))
