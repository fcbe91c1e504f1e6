"""`model_type: roberta`, `xlm-roberta`, `camembert` and `jina_embeddings_v3`: BGE-M3, multilingual E5, BGE rerankers.

The layers are BERT's. Names as in transformers/models/roberta/modeling_roberta.py and jina_embeddings_v3; and those of
xlm-roberta-flash, the own code of some models, which has rotary positions in some of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from msgspec.structs import replace

from vectord.checkpoints.config_keys import Harmless, harmless
from vectord.compute.networks import encoder, facts
from vectord.compute.networks.bert import NAMES
from vectord.compute.networks.heads import Classifier, MaskedLM, classify_first
from vectord.compute.networks.rotary import read_plain_rotary, rotary_table
from vectord.compute.networks.transformer import Transformer, TransformerSpec
from vectord.compute.networks.weights import FREQUENCIES, POOLER, HarmlessTensors, WeightReader
from vectord.compute.ops.base import Ops, T
from vectord.errors import ModelUnavailable

# MPNet has the same.
HEAD = encoder.HeadNames(
    dense="lm_head.dense", norm="lm_head.layer_norm", decoder="lm_head.decoder", bias="lm_head.bias"
)

# Of xlm-roberta-flash.
FLASH_NAMES = encoder.LayerNames(
    prefix="encoder.layers",
    attention="mixer.Wqkv",
    attention_out="mixer.out_proj",
    attention_norm="norm1",
    mlp=("mlp.fc1",),
    down="mlp.fc2",
    output_norm="norm2",
)
TRANSFORMERS_NAMES = replace(encoder.TRANSFORMERS_NAMES, mlp=("mlp.fc1",), down="mlp.fc2", mlp_bias=True)
ROTARY = "jina_embeddings_v3"

HARMLESS: Mapping[str, Harmless] = {
    **encoder.HARMLESS,
    **harmless("speed and memory only", "use_flash_attn use_reentrant"),
    **harmless(
        "of adapters, which checkpoints/adapters.py reads",
        "load_trained_adapters lora_adaptations lora_alpha lora_rank task_instructions",
    ),
    **harmless("training only", "lora_dropout_p lora_main_params_trainable"),
    **harmless("the usual width of the vector", "truncate_dim", None),
    **harmless("no layer after the pooling", "emb_pooler", None),
    **harmless("only with rotary positions", "rotary_emb_base"),
}
HARMLESS_TENSORS: Collection[HarmlessTensors] = (
    *encoder.HARMLESS_TENSORS,
    POOLER,
    *encoder.LM_HEAD,
    encoder.DENSE_CLASSIFIER,
    FREQUENCIES,
)


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    spec, weights = _spec(config), _body(weights)
    names = TRANSFORMERS_NAMES if config["model_type"] == ROTARY else NAMES
    is_flash = f"{FLASH_NAMES.prefix}.0.{FLASH_NAMES.attention}.weight" in weights
    rotary = None
    if _is_rotary(config):
        if names is NAMES and not is_flash:
            raise ModelUnavailable(
                "config.json: position_embedding_type rotary is supported with xlm-roberta-flash's tensors only"
            )
        theta = facts.number(config, "rotary_emb_base", 20_000.0 if names is TRANSFORMERS_NAMES else 10_000.0)
        turns = read_plain_rotary(config, theta=theta, positions=spec.max_tokens)
        rotary = rotary_table(weights, turns, spec.head_size, spec.max_tokens)
    return encoder.read_encoder(
        spec,
        weights,
        ops,
        FLASH_NAMES if is_flash else names,
        norm="emb_ln" if is_flash else "embeddings.LayerNorm",
        first_position=None if rotary else _first_position(config),
        rotary=rotary,
    )


def classifier(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], labels: int) -> Classifier[T]:
    return classify_first(weights, facts.size(config, "hidden_size"), labels)


def masked_lm(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> MaskedLM[T]:
    return encoder.read_masked_lm(config, _spec(config), weights, _body(weights), HEAD, "gelu")


def _body(weights: WeightReader[T]) -> WeightReader[T]:
    return weights.after_prefix(("", "roberta."), encoder.WORDS)


def _spec(config: Mapping[str, Any]) -> TransformerSpec:
    spec, first = encoder.read_spec(config, types=facts.size(config, "type_vocab_size")), _first_position(config)
    if _is_rotary(config):
        return spec
    if spec.max_tokens <= first:
        raise ModelUnavailable(
            f"config.json: max_position_embeddings {spec.max_tokens} leaves no room after pad_token_id {first - 1}"
        )
    return replace(spec, max_tokens=spec.max_tokens - first)


def _is_rotary(config: Mapping[str, Any]) -> bool:
    if config["model_type"] == ROTARY:
        return True
    return facts.choice(config, "position_embedding_type", ("absolute", "rotary"), "absolute") == "rotary"


def _first_position(config: Mapping[str, Any]) -> int:
    """The first token's row in the position table: positions count from after the padding token's id."""
    return facts.size(config, "pad_token_id", 1, at_least=0) + 1
