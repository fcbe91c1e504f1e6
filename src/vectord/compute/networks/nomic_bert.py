"""`model_type: nomic_bert`: nomic-embed-text v1 and v1.5, Snowflake's m-long.

Reads the models' own config keys and tensor names, and those of transformers/models/nomic_bert. Not supported: v2, a
mixture of experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vectord.compute.networks import facts
from vectord.compute.networks.bert import TYPES, WORDS
from vectord.compute.networks.encoder import EncoderBody, EncoderLayer, EncoderSpec, EncoderWeights
from vectord.compute.networks.heads.projection import Projection
from vectord.compute.networks.heads.scores import Classifier, classify_pooled
from vectord.compute.networks.heads.splade import MaskedLM, output_words
from vectord.compute.networks.rotary import RotaryTable, read_rotary, rotary_table
from vectord.compute.networks.weights import WeightReader
from vectord.compute.ops.base import Activation, Ops, T

# The models' own keys by transformers' keys.
OWN_KEYS: Mapping[str, str] = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "layer_norm_eps": "layer_norm_epsilon",
}
GATED: Mapping[str, Activation] = {"swiglu": "silu", "geglu": "gelu"}  # activation_function
ONLY: Mapping[str, object] = {  # other values would be another network
    "prenorm": False,
    "parallel_block": False,
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
}


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> EncoderBody[T]:
    """Return the encoder of a bare model ("") or of one under a head. Raises ModelUnavailable."""
    spec, weights = _spec(config), _body(weights)
    width = spec.hidden_size
    theta = facts.number(config, "rotary_emb_base", 1000.0)
    rotary = read_rotary(config, ("rope_parameters",), theta=theta, positions=spec.max_tokens)
    table = rotary_table(weights, rotary, spec.head_size, spec.max_tokens)
    return EncoderBody(
        spec,
        EncoderWeights(
            words=weights.tensor(WORDS, spec.vocab_size, width),
            types=weights.tensor(TYPES, spec.types, width),
            norm=weights.norm("emb_ln" if "emb_ln.weight" in weights else "embeddings.LayerNorm", width),
            layers=tuple(_layer(spec, weights, i, table) for i in range(spec.layers)),
        ),
        ops,
    )


def classifier(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], labels: int) -> Classifier[T]:
    """Return the head of NomicBertForSequenceClassification. Raises ModelUnavailable."""
    return classify_pooled(_body(weights), weights, facts.size(config, _key(config, "hidden_size")), labels)


def masked_lm(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> MaskedLM[T]:
    """Return the head of NomicBertForMaskedLM. Raises ModelUnavailable."""
    spec, name = _spec(config), "cls.predictions"
    width = spec.hidden_size
    dense = weights.linear(f"{name}.transform.dense", width, width)
    norm = weights.norm(f"{name}.transform.layer_norm", width)
    return MaskedLM(
        transform=Projection(dense, spec.activation, norm, spec.norm_eps),
        words=output_words(config, weights, f"{name}.decoder.weight", _body(weights), WORDS, (spec.vocab_size, width)),
        bias=weights.tensor(weights.first_of(f"{name}.decoder.bias", f"{name}.bias"), spec.vocab_size),
    )


def _body(weights: WeightReader[T]) -> WeightReader[T]:
    return weights.after_prefix(("", "nomic_bert.", "bert."), WORDS)


def _spec(config: Mapping[str, Any]) -> EncoderSpec:
    for key, only in ONLY.items():
        facts.require(config, key, only)
    return EncoderSpec(
        vocab_size=facts.size(config, "vocab_size"),
        max_tokens=facts.size(config, _key(config, "max_position_embeddings")),
        hidden_size=facts.size(config, _key(config, "hidden_size")),
        intermediate_size=facts.size(config, _key(config, "intermediate_size")),
        layers=facts.size(config, _key(config, "num_hidden_layers"), at_most=1024),
        heads=facts.heads(config, _key(config, "num_attention_heads"), _key(config, "hidden_size")),
        activation=facts.activation(config, "activation_function", GATED)
        if "activation_function" in config
        else facts.activation(config, "hidden_act"),
        norm_eps=facts.epsilon(config, _key(config, "layer_norm_eps")),
        types=facts.size(config, "type_vocab_size"),
    )


def _key(config: Mapping[str, Any], key: str) -> str:
    return OWN_KEYS[key] if OWN_KEYS[key] in config else key


def _layer(spec: EncoderSpec, weights: WeightReader[T], i: int, rotary: RotaryTable[T]) -> EncoderLayer[T]:
    if f"layers.{i}.self_attn.q_proj.weight" in weights:
        return _transformers_layer(spec, weights, f"layers.{i}", rotary)
    name, width, between = f"encoder.layers.{i}", spec.hidden_size, spec.intermediate_size
    query, key, value = weights.linears(f"{name}.attn.Wqkv", width, width, 3, bias=False)
    return EncoderLayer(
        query=query,
        key=key,
        value=value,
        attention_out=weights.linear(f"{name}.attn.out_proj", width, width, bias=False),
        attention_norm=weights.norm(f"{name}.norm1", width),
        up=weights.linear(f"{name}.mlp.fc11", width, between, bias=False),
        gate=weights.linear(f"{name}.mlp.fc12", width, between, bias=False),
        down=weights.linear(f"{name}.mlp.fc2", between, width, bias=False),
        output_norm=weights.norm(f"{name}.norm2", width),
        rotary=rotary,
    )


def _transformers_layer(
    spec: EncoderSpec, weights: WeightReader[T], name: str, rotary: RotaryTable[T]
) -> EncoderLayer[T]:
    width, between = spec.hidden_size, spec.intermediate_size
    return EncoderLayer(
        query=weights.linear(f"{name}.self_attn.q_proj", width, width, bias=False),
        key=weights.linear(f"{name}.self_attn.k_proj", width, width, bias=False),
        value=weights.linear(f"{name}.self_attn.v_proj", width, width, bias=False),
        attention_out=weights.linear(f"{name}.self_attn.o_proj", width, width, bias=False),
        attention_norm=weights.norm(f"{name}.post_attention_layernorm", width),
        up=weights.linear(f"{name}.mlp.up_proj", width, between, bias=False),
        gate=weights.linear(f"{name}.mlp.gate_proj", width, between, bias=False),
        down=weights.linear(f"{name}.mlp.down_proj", between, width, bias=False),
        output_norm=weights.norm(f"{name}.post_mlp_layernorm", width),
        rotary=rotary,
    )
