"""`model_type: distilbert`: BERT with half the layers. Names as in transformers/models/distilbert."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from vectord.checkpoints.config_keys import Harmless, harmless
from vectord.compute.networks import encoder, facts
from vectord.compute.networks.heads import Classifier, MaskedLM, Projection
from vectord.compute.networks.transformer import Transformer, TransformerSpec
from vectord.compute.networks.weights import HarmlessTensors, WeightReader
from vectord.compute.ops.base import Ops, T

KEYS: Mapping[str, str] = {  # by BERT's keys
    "hidden_size": "dim",
    "intermediate_size": "hidden_dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "hidden_act": "activation",
}
NAMES = encoder.LayerNames(
    prefix="transformer.layer",
    attention=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    attention_out="attention.out_lin",
    attention_norm="sa_layer_norm",
    mlp=("ffn.lin1",),
    down="ffn.lin2",
    output_norm="output_layer_norm",
)
HEAD = encoder.HeadNames(dense="vocab_transform", norm="vocab_layer_norm", decoder="vocab_projector")

HARMLESS: Mapping[str, Harmless] = {
    **encoder.HARMLESS,
    **harmless("training only", "qa_dropout seq_classif_dropout"),
    **harmless("the checkpoint has the table", "sinusoidal_pos_embds"),
}
HARMLESS_TENSORS: Collection[HarmlessTensors] = (
    *encoder.HARMLESS_TENSORS,
    *encoder.words_head(r"vocab_(transform|layer_norm|projector)\.(weight|bias)", r"vocab_projector\.weight"),
    HarmlessTensors("the layer before the classifier", r"pre_classifier\.(weight|bias)", unless="scores"),
)


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    return encoder.read_encoder(_spec(config), _body(weights), ops, NAMES, first_position=0)


def classifier(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], labels: int) -> Classifier[T]:
    width = facts.size(config, "dim")
    dense = Projection(weights.linear("pre_classifier", width, width), "relu")
    return Classifier("cls", (dense, Projection(weights.linear("classifier", width, labels))))


def masked_lm(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> MaskedLM[T]:
    return encoder.read_masked_lm(config, _spec(config), weights, _body(weights), HEAD)


def _body(weights: WeightReader[T]) -> WeightReader[T]:
    return weights.after_prefix(("", "distilbert."), encoder.WORDS)


def _spec(config: Mapping[str, Any]) -> TransformerSpec:
    return encoder.read_spec(config, keys=KEYS, norm_eps=1e-12)  # the norm's is not in any config
