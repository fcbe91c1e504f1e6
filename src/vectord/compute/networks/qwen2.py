"""`model_type: qwen2`: GTE-Qwen2, Qwen2.5. Names as in transformers/models/qwen2/modeling_qwen2.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vectord.compute.networks import decoder, facts
from vectord.compute.networks.decoder import DecoderBody, DecoderSpec, Family
from vectord.compute.networks.weights import WeightReader
from vectord.compute.ops.base import Ops, T

classifier = decoder.classifier
head_rows = decoder.head_rows


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> DecoderBody[T]:
    """Raises ModelUnavailable."""
    spec = decoder.read_spec(config)
    rotary = decoder.read_decoder_rotary(config, spec)
    family = Family(qkv_bias=True, windows=windows(config, spec), rotary=rotary)
    return decoder.load_decoder(spec, family, weights, ops)


def windows(config: Mapping[str, Any], spec: DecoderSpec) -> tuple[int | None, ...]:
    """AttentionSpec.window of each layer: if any slides, those from max_window_layers on do."""
    usual = [False] * spec.layers
    if facts.flag(config, "use_sliding_window", False):
        first = facts.size(config, "max_window_layers", 28, at_least=0)
        usual = [i >= first for i in range(spec.layers)]
    sliding = decoder.read_sliding(config, usual)
    return tuple(decoder.read_window(config, causal=spec.causal) if slides else None for slides in sliding)
