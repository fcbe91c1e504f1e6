"""`model_type: gte`, and `new`, its former name: GTE v1.5, multilingual GTE, Arctic Embed v2.

Tensors under the models' own names, and under those of transformers/models/gte. new.py uses these functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vectord.compute.networks import facts
from vectord.compute.networks.bert import TYPES, WORDS, encoder_spec
from vectord.compute.networks.encoder import EncoderBody, EncoderLayer, EncoderSpec, EncoderWeights
from vectord.compute.networks.heads.projection import Projection
from vectord.compute.networks.heads.scores import Classifier, classify_pooled
from vectord.compute.networks.heads.splade import MaskedLM, output_words
from vectord.compute.networks.rotary import Rotary, RotaryTable, read_rotary, rotary_table
from vectord.compute.networks.weights import WeightReader
from vectord.compute.ops.base import Ops, T

ONLY: Mapping[str, object] = {  # other values would be another network
    "position_embedding_type": "rope",
    "layer_norm_type": "layer_norm",
    "logn_attention_scale": False,
    "pack_qkv": True,
}


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> EncoderBody[T]:
    """Return the encoder of a bare model ("") or of one under a head. Raises ModelUnavailable."""
    spec, weights = _spec(config), _body(weights)
    width = spec.hidden_size
    table = rotary_table(weights, _rotary(config, spec), spec.head_size, spec.max_tokens)
    return EncoderBody(
        spec,
        EncoderWeights(
            words=weights.tensor(WORDS, spec.vocab_size, width),
            types=weights.tensor(TYPES, spec.types, width) if spec.types else None,
            norm=weights.norm("embeddings.LayerNorm", width),
            layers=tuple(_layer(spec, weights, i, table) for i in range(spec.layers)),
        ),
        ops,
    )


def classifier(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], labels: int) -> Classifier[T]:
    """Return the head of GteForSequenceClassification. Raises ModelUnavailable."""
    return classify_pooled(_body(weights), weights, facts.size(config, "hidden_size"), labels)


def masked_lm(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> MaskedLM[T]:
    """Return the head of GteForMaskedLM. Raises ModelUnavailable."""
    spec = _spec(config)
    width = spec.hidden_size
    norm = weights.norm("lm_head.norm" if "lm_head.norm.weight" in weights else "lm_head.layer_norm", width)
    return MaskedLM(
        transform=Projection(weights.linear("lm_head.dense", width, width), "gelu", norm, spec.norm_eps),
        words=output_words(config, weights, "lm_head.decoder.weight", _body(weights), WORDS, (spec.vocab_size, width)),
        bias=weights.tensor("lm_head.decoder.bias", spec.vocab_size),
    )


def _body(weights: WeightReader[T]) -> WeightReader[T]:
    return weights.after_prefix(("", "gte.", "new."), WORDS)


def _spec(config: Mapping[str, Any]) -> EncoderSpec:
    for key, only in ONLY.items():
        facts.require(config, key, only)
    return encoder_spec(config, types=facts.size(config, "type_vocab_size", at_least=0))


def _rotary(config: Mapping[str, Any], spec: EncoderSpec) -> Rotary:
    theta = facts.number(config, "rope_theta", 160_000.0)
    scaling = facts.section(config, "rope_scaling")
    if scaling.get("type") == "ntk":
        facts.require(scaling, "mixed_b", None)
        factor = facts.number(scaling, "factor", 1.0)
        # Fixed at every length: a larger base, and slightly lower frequencies.
        return Rotary(theta * factor, factor=factor ** (2 / spec.head_size))
    section = "rope_scaling" if scaling else "rope_parameters"
    return read_rotary(config, (section,), theta=theta, positions=spec.max_tokens)


def _layer(spec: EncoderSpec, weights: WeightReader[T], i: int, rotary: RotaryTable[T]) -> EncoderLayer[T]:
    if f"layers.{i}.self_attn.q_proj.weight" in weights:
        return _transformers_layer(spec, weights, f"layers.{i}", rotary)
    name, width, between = f"encoder.layer.{i}", spec.hidden_size, spec.intermediate_size
    query, key, value = weights.linears(f"{name}.attention.qkv_proj", width, width, 3, bias=True)
    up, gate = weights.linears(f"{name}.mlp.up_gate_proj", width, between, 2, bias=False)
    return EncoderLayer(
        query=query,
        key=key,
        value=value,
        attention_out=weights.linear(f"{name}.attention.o_proj", width, width),
        attention_norm=weights.norm(f"{name}.attn_ln", width),
        up=up,
        gate=gate,
        down=weights.linear(f"{name}.mlp.down_proj", between, width),
        output_norm=weights.norm(f"{name}.mlp_ln", width),
        rotary=rotary,
    )


def _transformers_layer(
    spec: EncoderSpec, weights: WeightReader[T], name: str, rotary: RotaryTable[T]
) -> EncoderLayer[T]:
    width, between = spec.hidden_size, spec.intermediate_size
    return EncoderLayer(
        query=weights.linear(f"{name}.self_attn.q_proj", width, width),
        key=weights.linear(f"{name}.self_attn.k_proj", width, width),
        value=weights.linear(f"{name}.self_attn.v_proj", width, width),
        attention_out=weights.linear(f"{name}.self_attn.o_proj", width, width),
        attention_norm=weights.norm(f"{name}.post_attention_layernorm", width),
        up=weights.linear(f"{name}.mlp.up_proj", width, between, bias=False),
        gate=weights.linear(f"{name}.mlp.gate_proj", width, between, bias=False),
        down=weights.linear(f"{name}.mlp.down_proj", between, width),
        output_norm=weights.norm(f"{name}.post_mlp_layernorm", width),
        rotary=rotary,
    )
