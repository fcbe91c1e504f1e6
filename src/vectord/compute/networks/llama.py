"""`model_type: llama`, `llama_bidirec` (Nemotron) and `eurobert`.

Names as in transformers/models/llama/modeling_llama.py. EuroBERT is a Llama without a causal mask, and `llama_bidirec`
is NVIDIA's name of the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from vectord.checkpoints.config_keys import Harmless
from vectord.checkpoints.spec import Pooling
from vectord.compute.networks import decoder, facts
from vectord.compute.networks.decoder import Family
from vectord.compute.networks.heads import Classifier, Projection
from vectord.compute.networks.transformer import Transformer
from vectord.compute.networks.weights import HarmlessTensors, Linear, WeightReader
from vectord.compute.ops.base import Ops, T

head_rows = decoder.head_rows

_POOLINGS: Mapping[str, Pooling] = {"avg": "mean", "cls": "cls", "last": "last"}  # NVIDIA's names

HARMLESS: Mapping[str, Harmless] = decoder.HARMLESS
HARMLESS_TENSORS: Collection[HarmlessTensors] = (
    *decoder.HARMLESS_TENSORS,
    HarmlessTensors("the layer before EuroBERT's classifier", r"dense\.(weight|bias)", unless="scores"),
)


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    spec, bias = decoder.read_spec(config), facts.flag(config, "attention_bias", False)
    family = Family(
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=facts.flag(config, "mlp_bias", False),
        windows=(None,) * spec.layers,
        rotary=decoder.read_decoder_rotary(config, spec),
    )
    return decoder.load_decoder(spec, family, weights, ops)


def classifier(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], labels: int) -> Classifier[T]:
    """Return the head of the model type's ...ForSequenceClassification."""
    match config["model_type"]:
        case "eurobert":
            width = facts.size(config, "hidden_size")
            # The model's own code and transformers have different names for the key.
            key = "clf_pooling" if "clf_pooling" in config else "classifier_pooling"
            pooling = facts.choice(config, key, ("bos", "mean", "late"), "late")
            dense = Projection(weights.linear("dense", width, width), "gelu")
            out = Projection(weights.linear("classifier", width, labels))
            if pooling == "late":  # the mean of the tokens' logits is the logit of their mean
                return Classifier("mean", (out,), tokens=(dense,))
            return Classifier("cls" if pooling == "bos" else "mean", (dense, out))
        case "llama_bidirec":
            score = weights.array("score.weight", labels, facts.size(config, "hidden_size"))
            temperature = facts.number(config, "temperature", 1.0)
            linear = Linear(weights.constant("score.weight", score / temperature), None)
            name = facts.choice(config, "pooling", tuple(_POOLINGS), "avg")
            return Classifier(_POOLINGS[name], (Projection(linear),))
        case _:
            return decoder.classifier(config, weights, ops, labels)
