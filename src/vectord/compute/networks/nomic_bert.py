"""`model_type: nomic_bert`: nomic-embed-text v1, v1.5 and v2 (a mixture of experts), Snowflake's m-long.

Reads the models' own config keys and tensor names, and those of transformers/models/nomic_bert, which has no experts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from msgspec.structs import replace

from vectord.checkpoints.config_keys import Harmless, harmless
from vectord.compute.networks import bert, encoder, facts
from vectord.compute.networks.heads import Classifier, MaskedLM, classify_pooled
from vectord.compute.networks.rotary import Rotary, read_plain_rotary, rotary_table
from vectord.compute.networks.transformer import Mixture, Mlp, Transformer, TransformerSpec
from vectord.compute.networks.weights import FREQUENCIES, POOLER, HarmlessTensors, Linear, WeightReader
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
ACTIVATIONS: Mapping[str, Activation] = {"swiglu": "silu", "geglu": "gelu", "gelu": "gelu"}  # activation_function
ONLY: Mapping[str, object] = {  # other values would be another network
    "prenorm": False,
    "parallel_block": False,
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
    **harmless("without experts", "expert_choice_router moe_normalize_expert_weights moe_top_k num_shared_experts"),
    **harmless("speed and memory only", "moe_impl"),
    **harmless("training only", "moe_resid_pdrop router_aux_loss_coef"),
    **harmless("the width of the layers' MLPs is n_inner", "ffn_div", 1),
    **harmless("no layer after the encoder", "add_pooling_layer", False),
    **harmless("speed and memory only", "fused_bias_fc fused_dropout_add_ln reorder_and_upcast_attn use_xentropy"),
    **harmless("only pretraining reads it", "dense_seq_output"),
    **harmless("the checkpoint has the padded table", "pad_vocab_size_multiple"),
    **harmless("only with parallel_block", "parallel_block_tied_norm"),
    **harmless("only with rotary_scaling_factor", "max_trained_positions"),
    **harmless("n_positions is read instead", "max_position_embeddings"),
}
HARMLESS_TENSORS: Collection[HarmlessTensors] = (
    *encoder.HARMLESS_TENSORS,
    POOLER,
    *encoder.BERT_WORDS_HEAD,
    FREQUENCIES,
)
NAMES = encoder.LayerNames(
    prefix="encoder.layers",
    attention="attn.Wqkv",
    attention_out="attn.out_proj",
    attention_norm="norm1",
    mlp=("mlp.fc11", "mlp.fc12"),
    down="mlp.fc2",
    output_norm="norm2",
)
PLAIN_MLP = "mlp.fc1"  # instead of the gated one
HEAD = replace(bert.HEAD, norm="cls.predictions.transform.layer_norm")


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    spec, weights = _spec(config), _body(weights)
    names = _names(config, weights)
    rotary = rotary_table(weights, _rotary(config, spec), spec.head_size, spec.max_tokens)
    mixtures = _mixtures(config, spec, weights)
    return encoder.read_encoder(
        spec,
        weights,
        ops,
        names,
        norm="emb_ln" if "emb_ln.weight" in weights else "embeddings.LayerNorm",
        layers=[
            encoder.read_layer(spec, weights, names, i, rotary=rotary, mlp=mixtures.get(i)) for i in range(spec.layers)
        ],
    )


def _names(config: Mapping[str, Any], weights: WeightReader[T]) -> encoder.LayerNames:
    if "layers.0.self_attn.q_proj.weight" in weights:
        return replace(encoder.TRANSFORMERS_NAMES, attention_bias=False, down_bias=False)
    gated = config.get("activation_function") != "gelu"
    return replace(
        NAMES,
        mlp=NAMES.mlp if gated else (PLAIN_MLP,),
        attention_bias=facts.flag(config, "qkv_proj_bias", False),
        mlp_bias=facts.flag(config, "mlp_fc1_bias", False),
        down_bias=facts.flag(config, "mlp_fc2_bias", False),
    )


def _mixtures(config: Mapping[str, Any], spec: TransformerSpec, weights: WeightReader[T]) -> dict[int, Mixture[T]]:
    """The experts by layer: each n-th layer has them, from the second on. Source: nomic-bert-2048's NomicMoELayer."""
    every = facts.size(config, "moe_every_n_layers", 0, at_least=0)
    if not every:
        facts.require(config, "num_experts", 0)
        return {}
    for key, only in {
        "moe_normalize_expert_weights": False,
        "num_shared_experts": 0,
        "expert_choice_router": False,
    }.items():
        facts.require(config, key, only)
    facts.require(config, "activation_function", "gelu")
    count = facts.size(config, "num_experts", at_least=2, at_most=1024)
    top = facts.size(config, "moe_top_k", at_most=count)
    width, inner = spec.hidden_size, spec.intermediate_size
    mixtures = {}
    for i in (i for i in range(spec.layers) if i % every == 1):
        layer = weights.under(f"{NAMES.prefix}.{i}.mlp.")
        ups = layer.stacked("experts.mlp.w1", count * inner, width, count=count)
        downs = layer.stacked("experts.mlp.w2", count * inner, width, count=count, transposed=True)
        mixtures[i] = Mixture(
            router=layer.linear("router.layer", width, count, bias=False),
            experts=tuple(
                Mlp(up=Linear(up, None), down=Linear(down, None)) for up, down in zip(ups, downs, strict=True)
            ),
            top=top,
            # GGUF files are without.
            bias=layer.constant("experts.bias", layer.array("experts.bias", width)[None])
            if "experts.bias" in layer
            else None,
        )
    return mixtures


def classifier(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], labels: int) -> Classifier[T]:
    return classify_pooled(
        _body(weights), weights, facts.size(config, "n_embd" if "n_embd" in config else "hidden_size"), labels
    )


def masked_lm(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> MaskedLM[T]:
    return encoder.read_masked_lm(config, _spec(config), weights, _body(weights), HEAD)


def _body(weights: WeightReader[T]) -> WeightReader[T]:
    return weights.after_prefix(("", "nomic_bert.", "bert."), encoder.WORDS)


def _rotary(config: Mapping[str, Any], spec: TransformerSpec) -> Rotary:
    """Read the models' own rotary_emb_base, or transformers' keys; if a config has both, they must agree."""
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
        activation = facts.activation(config, "activation_function", ACTIVATIONS)
        facts.require(config, "hidden_act", activation)
    types = facts.size(config, "type_vocab_size")
    spec = encoder.read_spec(config, keys=own_keys, types=types, activation=activation)
    facts.require(config, "head_dim", spec.head_size)
    return spec
