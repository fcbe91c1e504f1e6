"""`model_type: qwen2` and `qwen3`: GTE-Qwen2, Qwen2.5, Qwen3-Embedding, Qwen3-Reranker; three names of a bidirectional
Qwen3, those of pplx-embed, Giga-Embeddings and BidirLM.

Names as in transformers/models/qwen2/modeling_qwen2.py and qwen3/modeling_qwen3.py. Qwen3 normalizes each head's query
and key, and has biases only if the config says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vectord.checkpoints.config_keys import Harmless, harmless
from vectord.compute.networks import decoder, facts
from vectord.compute.networks.decoder import Family
from vectord.compute.networks.heads import Classifier, Projection
from vectord.compute.networks.rotary import read_sliding
from vectord.compute.networks.transformer import Transformer, TransformerSpec
from vectord.compute.networks.weights import Linear, WeightReader
from vectord.compute.ops.base import Ops, T

head_rows = decoder.head_rows
masked_lm = decoder.masked_lm

HARMLESS: Mapping[str, Harmless] = {
    **decoder.HARMLESS,
    **harmless("of layers that slide, which the model has none of", "max_window_layers sliding_window"),
    **harmless("Qwen2 has biases always", "attention_bias"),
}
HARMLESS_TENSORS = decoder.HARMLESS_TENSORS


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    spec, is_qwen3 = decoder.read_spec(config), config["model_type"] not in ("c2llm", "qwen2")
    bias = facts.flag(config, "attention_bias", False) if is_qwen3 else False
    family = Family(
        qkv_bias=bias or not is_qwen3,
        out_bias=bias,
        head_norms=is_qwen3,
        windows=read_windows(config, spec),
        rotary=decoder.read_decoder_rotary(config, spec),
    )
    return decoder.load_decoder(spec, family, weights, ops)


def read_windows(config: Mapping[str, Any], spec: TransformerSpec) -> tuple[int | None, ...]:
    """Return AttentionSpec.window of each layer."""
    slides, usual = facts.flag(config, "use_sliding_window", False), [False] * spec.layers
    if slides:
        first = facts.size(config, "max_window_layers", 28, at_least=0)
        usual = [i >= first for i in range(spec.layers)]
    sliding = read_sliding(config, usual)
    if any(sliding):
        facts.require({"use_sliding_window": slides}, "use_sliding_window", True)  # else transformers has no window
    return tuple(decoder.read_window(config, causal=spec.causal) if windowed else None for windowed in sliding)


def classifier(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], labels: int) -> Classifier[T]:
    """Return the usual head; Querit's has the logits of "no" and "yes", and half their difference is returned: its tanh
    is the difference of their probabilities, which is Querit's score."""
    if "head.weight" not in weights:
        return decoder.classifier(config, weights, ops, labels)
    half = np.array([[-0.5, 0.5]], np.float32)
    rows = half @ weights.array("head.weight", 2, facts.size(config, "hidden_size"))
    bias = half @ weights.array("head.bias", 2)
    row = Linear(weights.constant("head.weight", rows), weights.constant("head.bias", bias))
    return Classifier("last", (Projection(row),))
