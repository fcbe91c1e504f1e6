"""`model_type: modernbert`: GTE-ModernBERT, nomic ModernBERT. Names as in transformers/models/modernbert.

Every third layer attends to the whole text, the others to a window; each kind has its own rotary base. Norms come
first, and the MLP is gated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal, cast

import numpy as np
from msgspec.structs import replace

from vectord.checkpoints.config_keys import Harmless, harmless
from vectord.compute.networks import encoder, facts
from vectord.compute.networks.encoder import LayerNames, read_layer, read_spec
from vectord.compute.networks.heads import Classifier, MaskedLM, Projection, dense_and_norm, output_words
from vectord.compute.networks.rotary import LAYER_KINDS, CosSin, read_layer_rotary, read_sliding, rotary_table
from vectord.compute.networks.transformer import Transformer, TransformerSpec, TransformerWeights
from vectord.compute.networks.weights import FREQUENCIES, HarmlessTensors, WeightReader
from vectord.compute.ops.base import Ops, T

WORDS = "embeddings.tok_embeddings.weight"

THETAS: Mapping[str, tuple[str, float]] = {  # the key before rope_parameters, and the default
    "full_attention": ("global_rope_theta", 160_000.0),
    "sliding_attention": ("local_rope_theta", 10_000.0),
}

HARMLESS: Mapping[str, Harmless] = {
    **encoder.HARMLESS,
    **harmless("only classifiers read it", "classifier_activation classifier_bias classifier_pooling"),
    **harmless("only heads over the vocabulary read it", "decoder_bias sparse_pred_ignore_index sparse_prediction"),
    **harmless("training only", "initializer_cutoff_factor"),
    **harmless("speed only", "deterministic_flash_attn"),
    **harmless("sliding_window replaces it", "local_attention"),
    **harmless("of layers that the model has none of", "global_rope_theta local_rope_theta"),
}
HARMLESS_TENSORS: Collection[HarmlessTensors] = (
    *encoder.HARMLESS_TENSORS,
    *encoder.words_head(r"(head|decoder)\..+", r"decoder\.(weight|bias)"),
    FREQUENCIES,
)


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    spec, weights = _spec(config), _body(weights)
    width, names = spec.hidden_size, _names(config)
    whole_every = facts.size(config, "global_attn_every_n_layers", 3)  # the key before layer_types
    sliding = read_sliding(config, [i % whole_every != 0 for i in range(spec.layers)])
    kinds = [LAYER_KINDS[slides] for slides in sliding]
    tables = {kind: _rotary(config, spec, kind, weights) for kind in sorted(set(kinds))}
    # local_attention counts both sides; transformers' window is half of it, inclusive, and sliding_window replaces it.
    window = facts.size(config, "sliding_window", facts.size(config, "local_attention", 128) // 2)
    windows = {"full_attention": None, "sliding_attention": window}
    return Transformer(
        spec,
        TransformerWeights(
            words=weights.tensor(WORDS, spec.vocab_size, width),
            norm=weights.norm("embeddings.norm", width, bias=names.norm_bias),
            layers=tuple(
                read_layer(
                    spec,
                    weights,
                    # The embeddings' norm has already normalized the first layer's input.
                    names if i else replace(names, attention_norm=None),
                    i,
                    rotary=tables[kind],
                    window=windows[kind],
                )
                for i, kind in enumerate(kinds)
            ),
            final_norm=weights.norm("final_norm", width, bias=names.norm_bias),
        ),
        ops,
    )


def classifier(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], labels: int) -> Classifier[T]:
    pooling = cast(Literal["cls", "mean"], facts.choice(config, "classifier_pooling", ("cls", "mean"), "cls"))
    scores = weights.linear("classifier", facts.size(config, "hidden_size"), labels)
    return Classifier(pooling, (dense_and_norm(config, weights), Projection(scores)))


def masked_lm(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> MaskedLM[T]:
    spec = _spec(config)
    shape = spec.vocab_size, spec.hidden_size
    has_bias = facts.flag(config, "decoder_bias", True)
    return MaskedLM(
        transform=dense_and_norm(config, weights),
        words=output_words(config, weights, "decoder.weight", _body(weights), WORDS, shape),
        bias=weights.tensor("decoder.bias", spec.vocab_size)
        if has_bias
        else weights.constant("decoder.bias", np.zeros(spec.vocab_size)),
    )


def _body(weights: WeightReader[T]) -> WeightReader[T]:
    return weights.after_prefix(("", "model."), WORDS)


def _spec(config: Mapping[str, Any]) -> TransformerSpec:
    return read_spec(config, keys={"hidden_act": "hidden_activation", "layer_norm_eps": "norm_eps"}, norm_first=True)


def _rotary(config: Mapping[str, Any], spec: TransformerSpec, kind: str, weights: WeightReader[T]) -> CosSin[T]:
    facts.require(config, "rope_scaling", None)
    key, default = THETAS[kind]
    if key == "local_rope_theta" and key in config and config[key] is None:
        key, default = THETAS["full_attention"]
    theta = facts.number(config, key, default)
    rotary = read_layer_rotary(config, kind, theta=theta, positions=spec.max_tokens)
    return rotary_table(weights, rotary, spec.head_size, spec.max_tokens)


def _names(config: Mapping[str, Any]) -> LayerNames:
    mlp_bias = facts.flag(config, "mlp_bias", False)
    return LayerNames(
        prefix="layers",
        attention="attn.Wqkv",
        attention_out="attn.Wo",
        attention_norm="attn_norm",
        mlp="mlp.Wi",
        gate_first=True,
        down="mlp.Wo",
        output_norm="mlp_norm",
        attention_bias=facts.flag(config, "attention_bias", False),
        mlp_bias=mlp_bias,
        down_bias=mlp_bias,
        norm_bias=facts.flag(config, "norm_bias", False),
    )
