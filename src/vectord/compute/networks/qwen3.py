"""`model_type: qwen3`: Qwen3-Embedding, Qwen3-Reranker. Names as in transformers/models/qwen3/modeling_qwen3.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vectord.compute.networks import decoder, facts
from vectord.compute.networks.decoder import DecoderBody, Family
from vectord.compute.networks.qwen2 import windows
from vectord.compute.networks.weights import WeightReader
from vectord.compute.ops.base import Ops, T

classifier = decoder.classifier
head_rows = decoder.head_rows


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> DecoderBody[T]:
    """Raises ModelUnavailable."""
    spec = decoder.read_spec(config)
    bias = facts.flag(config, "attention_bias", False)
    rotary = decoder.read_decoder_rotary(config, spec)
    family = Family(qkv_bias=bias, out_bias=bias, head_norms=True, windows=windows(config, spec), rotary=rotary)
    return decoder.load_decoder(spec, family, weights, ops)
