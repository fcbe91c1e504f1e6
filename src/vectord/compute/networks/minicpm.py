"""`model_type: minicpm`: bge-reranker-v2-minicpm-layerwise. Names as in FlagEmbedding's modeling_minicpm_reranker.py.

Differences from Llama: the word vectors and what each half of a layer adds are scaled, and each of the last layers has
a head of one number. Only the layers up to the chosen one are read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from msgspec.structs import replace

from vectord.checkpoints.config_keys import Harmless, harmless
from vectord.compute.networks import decoder, facts
from vectord.compute.networks.decoder import Family
from vectord.compute.networks.heads import Classifier, Projection
from vectord.compute.networks.transformer import Transformer
from vectord.compute.networks.weights import HarmlessTensors, WeightReader
from vectord.compute.ops.base import Ops, T

HARMLESS: Mapping[str, Harmless] = {
    **decoder.HARMLESS,
    **harmless("only heads over the vocabulary read it", "dim_model_base"),
    **harmless("only the heads of layers read it", "head_multi head_type"),
}
HARMLESS_TENSORS: Collection[HarmlessTensors] = (
    *decoder.HARMLESS_TENSORS,
    HarmlessTensors("heads of layers", r"lm_head\.\d+\.linear_head\.weight", unless="scores"),
)
_OF_LAYER = (
    *(f"self_attn.{part}_proj" for part in "qkvo"),
    *(f"mlp.{part}_proj" for part in ("gate", "up", "down")),
    *("input_layernorm", "post_attention_layernorm"),
)


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    for key, only in {"head_dim": None, "is_causal": True, "use_bidirectional_attention": False}.items():
        facts.require(config, key, only)  # the model's own code reads none of them
    spec, bias = decoder.read_spec(config), facts.flag(config, "attention_bias", False)
    spec = replace(
        spec,
        word_scale=facts.number(config, "scale_emb", 1.0),
        residual_scale=facts.number(config, "scale_depth", 1.0) / spec.layers**0.5,
    )
    last = _last_layer(config)
    family = Family(
        qkv_bias=bias, out_bias=bias, windows=(None,) * last, rotary=decoder.read_decoder_rotary(config, spec)
    )
    body = weights.after_prefix(decoder.PREFIXES, decoder.WORDS)
    for i in range(last, spec.layers):
        for name in _OF_LAYER:
            body.ignore(f"layers.{i}.{name}.weight")
            body.ignore(f"layers.{i}.{name}.bias")
    return decoder.load_decoder(spec, family, weights, ops)


def classifier(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], labels: int) -> Classifier[T]:
    """Return the head of the last layer that runs."""
    facts.require(config, "head_type", "simple")
    facts.require(config, "head_multi", True)
    first, last = facts.size(config, "start_layer"), _last_layer(config)
    for i in range(facts.size(config, "num_hidden_layers") + 1 - first):
        weights.ignore(f"lm_head.{i}.linear_head.weight")
    head = weights.linear(f"lm_head.{last - first}.linear_head", facts.size(config, "hidden_size"), labels, bias=False)
    return Classifier("last", (Projection(head),))


def _last_layer(config: Mapping[str, Any]) -> int:
    layers = facts.size(config, "num_hidden_layers", at_most=1024)
    return facts.size(config, "cutoff_layer", layers, at_least=facts.size(config, "start_layer", 1), at_most=layers)
