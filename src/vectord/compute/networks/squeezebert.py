"""`model_type: squeezebert`. Names as in transformers/models/squeezebert/modeling_squeezebert.py.

Differences from BERT: linear layers are convolutions over one token, whose inputs and outputs may be divided into
groups. Such a layer is read as the matrix that has zeros between the groups.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from vectord.checkpoints.config_keys import Harmless
from vectord.compute.networks import encoder, facts
from vectord.compute.networks.bert import HEAD, NAMES
from vectord.compute.networks.heads import Classifier, MaskedLM, classify_pooled
from vectord.compute.networks.transformer import Attention, Mlp, Transformer, TransformerLayer, TransformerSpec
from vectord.compute.networks.weights import POOLER, HarmlessTensors, Linear, WeightReader
from vectord.compute.ops.base import Ops, T
from vectord.errors import ModelUnavailable

HARMLESS: Mapping[str, Harmless] = encoder.HARMLESS
HARMLESS_TENSORS: Collection[HarmlessTensors] = (*encoder.HARMLESS_TENSORS, POOLER, *encoder.BERT_WORDS_HEAD)
EPSILON = 1e-12  # of the layers' norms in transformers, whatever the config has for the others


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    """Return the encoder of a bare model ("") or of one under a head ("transformer."). Raises ModelUnavailable."""
    spec = encoder.read_spec(config, types=facts.size(config, "type_vocab_size"))
    facts.require(config, "embedding_size", spec.hidden_size)
    facts.require(config, "layer_norm_eps", EPSILON)
    weights = _body(weights)
    layers = [_layer(config, spec, weights.under(f"encoder.layers.{i}.")) for i in range(spec.layers)]
    return encoder.read_encoder(spec, weights, ops, NAMES, first_position=0, layers=layers)


def classifier(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], labels: int) -> Classifier[T]:
    """Return the head of SqueezeBertForSequenceClassification. Raises ModelUnavailable."""
    return classify_pooled(_body(weights), weights, facts.size(config, "hidden_size"), labels)


def masked_lm(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> MaskedLM[T]:
    """Return the head of SqueezeBertForMaskedLM. Raises ModelUnavailable."""
    return encoder.read_masked_lm(config, encoder.read_spec(config), weights, _body(weights), HEAD)


def _body(weights: WeightReader[T]) -> WeightReader[T]:
    return weights.after_prefix(("", "transformer."), encoder.WORDS)


def _layer(config: Mapping[str, Any], spec: TransformerSpec, layer: WeightReader[T]) -> TransformerLayer[T]:
    width, between = spec.hidden_size, spec.intermediate_size

    def linear(name: str, key: str, inputs: int, outputs: int, default: int = 4) -> Linear[T]:
        return _convolution(layer, name, inputs, outputs, facts.size(config, key, default))

    return TransformerLayer(
        attention=Attention(
            query=linear("attention.query", "q_groups", width, width),
            key=linear("attention.key", "k_groups", width, width),
            value=linear("attention.value", "v_groups", width, width),
            out=linear("post_attention.conv1d", "post_attention_groups", width, width, 1),
        ),
        attention_norm=layer.norm("post_attention.layernorm", width),
        mlp=Mlp(
            up=linear("intermediate.conv1d", "intermediate_groups", width, between),
            down=linear("output.conv1d", "output_groups", between, width),
        ),
        output_norm=layer.norm("output.layernorm", width),
    )


def _convolution(layer: WeightReader[T], name: str, inputs: int, outputs: int, groups: int) -> Linear[T]:
    if inputs % groups or outputs % groups:
        raise ModelUnavailable(f"{name}: {groups} groups do not divide {inputs} inputs and {outputs} outputs")
    parts = layer.array(f"{name}.weight", outputs, inputs // groups, 1)[:, :, 0]
    matrix = np.zeros((outputs, inputs), np.float32)
    for i, part in enumerate(np.split(parts, groups)):
        matrix[i * len(part) : (i + 1) * len(part), i * part.shape[1] : (i + 1) * part.shape[1]] = part
    return Linear(layer.constant(f"{name}.weight", matrix), layer.tensor(f"{name}.bias", outputs))
