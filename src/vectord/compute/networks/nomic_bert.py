"""`model_type: nomic_bert`: nomic-embed-text v1 and v1.5, Snowflake's m-long.

Reads the models' own config keys and tensor names, and those of transformers/models/nomic_bert. Not supported: v2, a
mixture of experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vectord.checkpoints.config_keys import Harmless, harmless
from vectord.compute.networks import encoder, facts
from vectord.compute.networks.heads import Classifier, MaskedLM, classify_pooled
from vectord.compute.networks.rotary import Rotary, read_plain_rotary, rotary_table
from vectord.compute.networks.transformer import Transformer, TransformerSpec
from vectord.compute.networks.weights import WeightReader
from vectord.compute.ops.base import Activation, Ops, T
from vectord.errors import ModelUnavailable

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
HARMLESS: Mapping[str, Harmless] = {
    **encoder.HARMLESS,
    **harmless(
        "the usual network", "causal norm_mlp rotary_head_dim scale_attn_by_inverse_layer_idx use_rms_norm", False
    ),
    **harmless("the usual network", "scale_attn_weights", True),
    **harmless("the usual network: no mixture of experts", "num_experts", 0),
    **harmless("speed and memory only", "fused_bias_fc fused_dropout_add_ln reorder_and_upcast_attn use_xentropy"),
    **harmless("only pretraining reads it", "dense_seq_output"),
    **harmless("the checkpoint has the padded table", "pad_vocab_size_multiple"),
    **harmless("only with parallel_block", "parallel_block_tied_norm"),
    **harmless("only with rotary_scaling_factor", "max_trained_positions"),
    **harmless("n_positions is read instead", "max_position_embeddings"),
}
NAMES = encoder.LayerNames(
    prefix="encoder.layers",
    attention="attn.Wqkv",
    attention_out="attn.out_proj",
    attention_norm="norm1",
    mlp=("mlp.fc11", "mlp.fc12"),
    down="mlp.fc2",
    output_norm="norm2",
    attention_bias=False,
    mlp_bias=False,
    down_bias=False,
)
HEAD = encoder.HeadNames(
    dense="cls.predictions.transform.dense",
    norm="cls.predictions.transform.layer_norm",
    decoder="cls.predictions.decoder",
    bias="cls.predictions.bias",
)


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    """Return the encoder of a bare model ("") or of one under a head. Raises ModelUnavailable."""
    spec, weights = _spec(config), _body(weights)
    rotary = _rotary(config, spec)
    names = NAMES
    if "layers.0.self_attn.q_proj.weight" in weights:
        names = replace(encoder.TRANSFORMERS_NAMES, attention_bias=False, down_bias=False)
    return encoder.read_encoder(
        spec,
        weights,
        ops,
        names,
        norm="emb_ln" if "emb_ln.weight" in weights else "embeddings.LayerNorm",
        rotary=rotary_table(weights, rotary, spec.head_size, spec.max_tokens),
    )


def classifier(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], labels: int) -> Classifier[T]:
    """Return the head of NomicBertForSequenceClassification. Raises ModelUnavailable."""
    return classify_pooled(
        _body(weights), weights, facts.size(config, "n_embd" if "n_embd" in config else "hidden_size"), labels
    )


def masked_lm(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> MaskedLM[T]:
    """Return the head of NomicBertForMaskedLM. Raises ModelUnavailable."""
    return encoder.read_masked_lm(config, _spec(config), weights, _body(weights), HEAD)


def _body(weights: WeightReader[T]) -> WeightReader[T]:
    return weights.after_prefix(("", "nomic_bert.", "bert."), encoder.WORDS)


def _rotary(config: Mapping[str, Any], spec: TransformerSpec) -> Rotary:
    """By the models' own rotary_emb_base, or transformers' keys; if a config has both, they must agree."""
    own = Rotary(facts.number(config, "rotary_emb_base", 1000.0))
    rotary = read_plain_rotary(config, theta=own.theta, positions=spec.max_tokens)
    if config.get("rotary_emb_base") is not None and rotary != own:
        raise ModelUnavailable(
            "config.json: rotary_emb_base contradicts rope_theta, rope_scaling or rope_parameters; remove the wrong one"
        )
    return rotary


def _spec(config: Mapping[str, Any]) -> TransformerSpec:
    for key, only in ONLY.items():
        facts.require(config, key, only)
    own_keys = {key: own for key, own in OWN_KEYS.items() if own in config}
    for key in own_keys.keys() - {"max_position_embeddings"}:  # of v1.5: 2048, and n_positions 8192
        facts.require(config, key, config.get(own_keys[key]))
    activation = None
    if "activation_function" in config:
        activation = facts.activation(config, "activation_function", GATED)
        facts.require(config, "hidden_act", activation)
    types = facts.size(config, "type_vocab_size")
    spec = encoder.read_spec(config, keys=own_keys, types=types, activation=activation)
    facts.require(config, "head_dim", spec.head_size)
    return spec
