"""`model_type: gemma3_text`: EmbeddingGemma. Names as in transformers/models/gemma3/modeling_gemma3.py.

Differences from Llama: norms also after each half of a layer, norm weights stored as difference from 1, and two
kinds of layers. Most attend to a window, with fast rotary positions; some attend to all, with slow ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from vectord.compute.networks import decoder, facts
from vectord.compute.networks.decoder import PREFIXES, WORDS, DecoderBody, DecoderLayer, DecoderSpec, DecoderWeights
from vectord.compute.networks.rotary import Rotary, RotaryTable, read_rotary, rotary_table
from vectord.compute.networks.weights import WeightReader
from vectord.compute.ops.base import Ops, T

classifier = decoder.classifier


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> DecoderBody[T]:
    """Raises ModelUnavailable."""
    spec = _spec(config)
    return DecoderBody(spec, _weights(config, spec, weights.after_prefix(PREFIXES, WORDS)), ops)


def head_rows(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], ids: Sequence[int]) -> T:
    """As decoder.head_rows. Raises ModelUnavailable."""
    facts.require(config, "final_logit_softcapping", None)
    return decoder.head_rows({"tie_word_embeddings": True, **config}, weights, ops, ids)


def _spec(config: Mapping[str, Any]) -> DecoderSpec:
    facts.require(config, "attn_logit_softcapping", None)
    facts.require(config, "is_causal", True)  # use_bidirectional_attention decides instead
    spec = decoder.read_spec(config, activation_key="hidden_activation")
    return replace(
        spec,
        causal=not facts.flag(config, "use_bidirectional_attention", False),
        attention_scale=facts.number(config, "query_pre_attn_scalar", 256) ** -0.5,
        word_scale=spec.hidden_size**0.5,
    )


def _weights(config: Mapping[str, Any], spec: DecoderSpec, weights: WeightReader[T]) -> DecoderWeights[T]:
    usual = facts.size(config, "sliding_window_pattern", 6)  # each 6th layer attends to all
    sliding = decoder.read_sliding(config, [(i + 1) % usual != 0 for i in range(spec.layers)])
    window = _window(config, spec) if any(sliding) else None
    slow, quick = (rotary_table(weights, rotary, spec.head_size, spec.max_tokens) for rotary in _rotary(config, spec))
    bias = facts.flag(config, "attention_bias", False)
    return DecoderWeights(
        words=weights.tensor(WORDS, spec.vocab_size, spec.hidden_size),
        layers=tuple(
            _layer(spec, weights, f"layers.{i}", bias, quick if slides else slow, window if slides else None)
            for i, slides in enumerate(sliding)
        ),
        final_norm=_norm(weights, "norm", spec.hidden_size),
    )


def _window(config: Mapping[str, Any], spec: DecoderSpec) -> int:
    """AttentionSpec.window: as for others if causal; else half of sliding_window on each side of a token."""
    return decoder.read_window(config, causal=True) if spec.causal else facts.size(config, "sliding_window") // 2


def _rotary(config: Mapping[str, Any], spec: DecoderSpec) -> tuple[Rotary, Rotary]:
    """Of layers that attend to all, and to a window. Before transformers 5, rope_scaling applies to the former."""
    full = ("rope_scaling",) if config.get("rope_scaling") else ("rope_parameters", "full_attention")
    theta = facts.number(config, "rope_theta", 1e6)
    local_theta = facts.number(config, "rope_local_base_freq", 1e4)
    return (
        read_rotary(config, full, theta=theta, positions=spec.max_tokens),
        read_rotary(config, ("rope_parameters", "sliding_attention"), theta=local_theta, positions=spec.max_tokens),
    )


def _layer(
    spec: DecoderSpec, weights: WeightReader[T], name: str, bias: bool, rotary: RotaryTable[T], window: int | None
) -> DecoderLayer[T]:
    width, inner = spec.hidden_size, spec.intermediate_size
    return DecoderLayer(
        attention_norm=_norm(weights, f"{name}.input_layernorm", width),
        query=weights.linear(f"{name}.self_attn.q_proj", width, spec.query_width, bias=bias),
        key=weights.linear(f"{name}.self_attn.k_proj", width, spec.key_width, bias=bias),
        value=weights.linear(f"{name}.self_attn.v_proj", width, spec.key_width, bias=bias),
        query_norm=_norm(weights, f"{name}.self_attn.q_norm", spec.head_size),
        key_norm=_norm(weights, f"{name}.self_attn.k_norm", spec.head_size),
        attention_out=weights.linear(f"{name}.self_attn.o_proj", spec.query_width, width, bias=bias),
        attention_out_norm=_norm(weights, f"{name}.post_attention_layernorm", width),
        between_norm=_norm(weights, f"{name}.pre_feedforward_layernorm", width),
        gate=weights.linear(f"{name}.mlp.gate_proj", width, inner, bias=False),
        up=weights.linear(f"{name}.mlp.up_proj", width, inner, bias=False),
        down=weights.linear(f"{name}.mlp.down_proj", inner, width, bias=False),
        between_out_norm=_norm(weights, f"{name}.post_feedforward_layernorm", width),
        rotary=rotary,
        window=window,
    )


def _norm(weights: WeightReader[T], name: str, width: int) -> T:
    """The checkpoint stores the difference from 1."""
    return weights.constant(f"{name}.weight", 1 + weights.array(f"{name}.weight", width))
