"""How llama.cpp names the metadata and tensors of each architecture: `find_architecture(path, file)`.

model.py makes config.json of the keys, weights.py makes transformers' tensors of the tensors.
Source: conversion/*.py and gguf-py/gguf/tensor_mapping.py of llama.cpp, which write these files, and src/models/*.cpp,
which reads them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from vectord.checkpoints.config_keys import one_of
from vectord.checkpoints.files.gguf_file import GgufFile
from vectord.checkpoints.spec import PAD_TOKEN_ID
from vectord.errors import ModelUnavailable

RANK = 4  # pooling_type of models with scores
DENSE = ("dense_2", "dense_3")  # the layers after the pooling of EmbeddingGemma


class GgufArchitecture(msgspec.Struct, frozen=True, kw_only=True):
    """How the metadata and tensors of one architecture are named in transformers."""

    config: Mapping[str, Any]  # keys of config.json with one value for all models
    whole: Mapping[str, str]  # keys of the metadata after "ARCHITECTURE.", and config.json's: whole numbers
    real: Mapping[str, str]  # the same, of other numbers
    tensors: Mapping[str, str]  # names without ".weight" and ".bias", or whole names
    layer: str  # the prefix of a layer's names
    layers: Mapping[str, str]  # names after "blk.N.", the same; or whole names
    norm_offset: float = 0.0  # added to the weights of norms
    interleaved: bool = False  # whether rows of queries and keys are ordered for rotation of adjacent pairs
    defaults: Mapping[str, Any] = {}  # llama.cpp's, for keys that are missing


_SIZES = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
_LENGTH = {"context_length": "max_position_embeddings"}
_DECODER_SIZES = {**_SIZES, **_LENGTH, "attention.head_count_kv": "num_key_value_heads"}
_HEAD_SIZE = {"attention.key_length": "head_dim"}
_LAYER_NORM = {"attention.layer_norm_epsilon": "layer_norm_eps"}
_RMS_NORM = {"attention.layer_norm_rms_epsilon": "rms_norm_eps"}
_THETA = {"rope.freq_base": "rope_theta"}

_BERT = GgufArchitecture(
    config={"model_type": "bert", "hidden_act": "gelu", "architectures": ["BertModel"]},
    whole=_SIZES,
    real=_LAYER_NORM,
    tensors={
        "token_embd": "embeddings.word_embeddings",
        "token_types": "embeddings.token_type_embeddings",
        "position_embd": "embeddings.position_embeddings",
        "token_embd_norm": "embeddings.LayerNorm",
        "cls": "pooler.dense",
        "cls.output": "classifier",
    },
    layer="encoder.layer",
    layers={
        "attn_q": "attention.self.query",
        "attn_k": "attention.self.key",
        "attn_v": "attention.self.value",
        "attn_output": "attention.output.dense",
        "attn_output_norm": "attention.output.LayerNorm",
        "ffn_up": "intermediate.dense",
        "ffn_down": "output.dense",
        "layer_output_norm": "output.LayerNorm",
    },
)
_NOMIC = replace(
    _BERT,
    config={"model_type": "nomic_bert", "activation_function": "swiglu", "architectures": ["NomicBertModel"]},
    whole={**_SIZES, **_LENGTH},
    real={**_LAYER_NORM, "rope.freq_base": "rotary_emb_base"},
    defaults={"rope.freq_base": 10_000.0},
    layer="encoder.layers",
    layers={
        "attn_qkv": "attn.Wqkv",
        "attn_output": "attn.out_proj",
        "attn_output_norm": "norm1",
        "ffn_up": "mlp.fc11",
        "ffn_gate": "mlp.fc12",
        "ffn_down": "mlp.fc2",
        "layer_output_norm": "norm2",
    },
)
_NOMIC_MOE = replace(
    _NOMIC,
    config={
        **_NOMIC.config,
        "activation_function": "gelu",
        **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), True),
    },
    whole={
        **_NOMIC.whole,
        "expert_count": "num_experts",
        "expert_used_count": "moe_top_k",
        "moe_every_n_layers": "moe_every_n_layers",
    },
    layers={
        **_NOMIC.layers,
        "ffn_up": "mlp.fc1",
        "ffn_gate_inp": "mlp.router.layer",
        "ffn_up_exps.weight": "mlp.experts.mlp.w1",
        "ffn_down_exps.weight": "mlp.experts.mlp.w2",
    },
)
_JINA = replace(
    _BERT,
    config={**_BERT.config, "position_embedding_type": "alibi", "feed_forward_type": "geglu"},
    whole={**_SIZES, **_LENGTH},
    layers={**_BERT.layers, "ffn_up": "mlp.gated_layers", "ffn_down": "mlp.wo", "layer_output_norm": "mlp.layernorm"},
)
_JINA_V3 = replace(
    _BERT,
    config={
        "model_type": "xlm-roberta",
        "hidden_act": "gelu",
        "position_embedding_type": "rotary",
        "architectures": ["XLMRobertaModel"],
    },
    whole={**_SIZES, **_LENGTH},
    real={**_LAYER_NORM, "rope.freq_base": "rotary_emb_base"},
    defaults=_NOMIC.defaults,
    tensors={**_BERT.tensors, "token_embd_norm": "emb_ln"},
    layer="encoder.layers",
    layers={
        **_NOMIC.layers,
        "attn_qkv": "mixer.Wqkv",
        "attn_output": "mixer.out_proj",
        "ffn_up": "mlp.fc1",
    },
)
_MODERN_BERT = GgufArchitecture(
    config={"model_type": "modernbert", "architectures": ["ModernBertModel"]},
    whole={**_SIZES, **_LENGTH, "attention.sliding_window": "local_attention"},
    real={
        "attention.layer_norm_epsilon": "norm_eps",
        "rope.freq_base": "global_rope_theta",
        "rope.freq_base_swa": "local_rope_theta",
    },
    defaults={"rope.freq_base": 10_000.0, "rope.freq_base_swa": 10_000.0},
    tensors={
        "token_embd": "embeddings.tok_embeddings",
        "token_embd_norm": "embeddings.norm",
        "output_norm": "final_norm",
        "cls": "head.dense",
        "cls.norm": "head.norm",
        "cls.output": "classifier",
    },
    layer="layers",
    layers={
        "attn_norm": "attn_norm",
        "attn_qkv": "attn.Wqkv",
        "attn_output": "attn.Wo",
        "ffn_norm": "mlp_norm",
        "ffn_up": "mlp.Wi",
        "ffn_down": "mlp.Wo",
    },
)
_LLAMA = GgufArchitecture(
    config={"model_type": "llama", "hidden_act": "silu", "architectures": ["LlamaForCausalLM"]},
    whole={**_DECODER_SIZES, **_HEAD_SIZE},
    real={**_RMS_NORM, **_THETA},
    defaults={"rope.freq_base": 10_000.0},
    tensors={
        "token_embd": "embed_tokens",
        "output_norm": "norm",
        "output": "lm_head",
        "rope_freqs.weight": "inv_freq",  # model.py recognizes the scaling that they are of
    },
    layer="layers",
    layers={
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    },
    interleaved=True,
)
_QWEN2 = replace(
    _LLAMA,
    config={"model_type": "qwen2", "hidden_act": "silu", "architectures": ["Qwen2ForCausalLM"]},
    interleaved=False,
)
_QWEN3 = replace(
    _QWEN2,
    config={**_QWEN2.config, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]},
    tensors={**_QWEN2.tensors, "cls.output": "score"},
)
_EUROBERT = replace(_QWEN2, config={**_QWEN2.config, "model_type": "eurobert", "architectures": ["EuroBertModel"]})
_LLAMA_EMBED = replace(
    _LLAMA,
    config={**_LLAMA.config, "model_type": "llama_bidirec", "architectures": ["LlamaBidirectionalModel"]},
)
_LFM2 = GgufArchitecture(
    config={"model_type": "lfm2", "block_auto_adjust_ff_dim": False, "architectures": ["Lfm2Model"]},
    whole={**_SIZES, **_LENGTH, "shortconv.l_cache": "conv_L_cache"},
    real={"attention.layer_norm_rms_epsilon": "norm_eps", **_THETA},
    defaults=_LLAMA.defaults,
    tensors={"token_embd": "embed_tokens", "token_embd_norm": "embedding_norm", "output": "lm_head"},
    layer="layers",
    layers={
        "attn_norm": "operator_norm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.out_proj",
        "attn_q_norm": "self_attn.q_layernorm",
        "attn_k_norm": "self_attn.k_layernorm",
        "shortconv.conv": "conv.conv",
        "shortconv.in_proj": "conv.in_proj",
        "shortconv.out_proj": "conv.out_proj",
        "ffn_norm": "ffn_norm",
        "ffn_gate": "feed_forward.w1",
        "ffn_down": "feed_forward.w2",
        "ffn_up": "feed_forward.w3",
    },
)
_EMBEDDING_GEMMA = replace(
    _QWEN2,
    config={
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "use_bidirectional_attention": True,
        "architectures": ["Gemma3TextModel"],
    },
    whole={**_DECODER_SIZES, **_HEAD_SIZE, "attention.sliding_window": "sliding_window"},
    real={**_RMS_NORM, **_THETA, "rope.freq_base_swa": "rope_local_base_freq"},
    defaults={"rope.freq_base": 1e6, "rope.freq_base_swa": 10_000.0},
    tensors={**_LLAMA.tensors, "dense.0": DENSE[0], "dense.1": DENSE[1]},  # Ollama's names
    layers={
        **_LLAMA.layers,
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
    norm_offset=-1.0,
)

ARCHITECTURES: Mapping[str, GgufArchitecture] = {
    "bert": _BERT,
    "eurobert": _EUROBERT,
    "gemma-embedding": _EMBEDDING_GEMMA,
    "gemma3": _EMBEDDING_GEMMA,  # Ollama's first EmbeddingGemma; other files are refused
    "jina-bert-v2": _JINA,
    "jina-bert-v3": _JINA_V3,
    "lfm2": _LFM2,
    "llama": _LLAMA,
    "llama-embed": _LLAMA_EMBED,
    "modern-bert": _MODERN_BERT,
    "nomic-bert": _NOMIC,
    "nomic-bert-moe": _NOMIC_MOE,
    "qwen2": _QWEN2,
    "qwen3": _QWEN3,
}
# By the tokenizer: llama.cpp has one architecture for BERT and its descendants.
_BERT_BY_TOKENIZER: Mapping[str, tuple[str, str]] = {  # model_type and class
    "bert": ("bert", "BertModel"),
    "gpt2": ("roberta", "RobertaModel"),
    "t5": ("xlm-roberta", "XLMRobertaModel"),
}
_ROBERTA_HEAD = {"cls": "classifier.dense", "cls.output": "classifier.out_proj"}
RANKED = frozenset({"bert", "modern-bert", "qwen3"})  # architectures that may have pooling_type 4


def find_architecture(path: Path, file: GgufFile) -> tuple[str, GgufArchitecture]:
    """Return the architecture's name in the file, and its entry."""
    name = file.metadata.get("general.architecture")
    architecture = ARCHITECTURES.get(name) if isinstance(name, str) else None
    if architecture is None:
        raise ModelUnavailable(
            f"{path}: general.architecture {str(name)[:80]!r} is not supported; supported are "
            f"{', '.join(ARCHITECTURES)}"
        )
    assert isinstance(name, str)
    if name == "gemma3" and "dense.0.weight" not in file.tensors:
        raise ModelUnavailable(f"{path}: general.architecture 'gemma3' is supported for EmbeddingGemma only")
    if name == "bert":
        model = file.metadata.get("tokenizer.ggml.model")
        if not isinstance(model, str) or model not in _BERT_BY_TOKENIZER:
            raise ModelUnavailable(
                f"{path}: tokenizer.ggml.model {str(model)[:80]!r} is not supported for general.architecture 'bert'; "
                f"supported are {', '.join(_BERT_BY_TOKENIZER)}"
            )
        model_type, class_name = _BERT_BY_TOKENIZER[model]
        config = {**_BERT.config, "model_type": model_type, "architectures": [class_name]}
        tensors = _BERT.tensors if model_type == "bert" else {**_BERT.tensors, **_ROBERTA_HEAD}
        architecture = replace(_BERT, config=config, tensors=tensors)
    if not one_of(RANK)(file.metadata.get(f"{name}.pooling_type")) or name not in RANKED:
        return name, architecture
    if architecture.config["model_type"] == "bert" and "cls.weight" not in file.tensors:
        raise ModelUnavailable(
            f"{path}: no tensor cls.weight: the conversion left out BERT's pooler; llama.cpp gives the first token's "
            "state to the classifier without it, so its scores are not the model's; serve the model that the file was "
            "made from"
        )
    classifier = re.sub("(Model|ForCausalLM)$", "ForSequenceClassification", architecture.config["architectures"][0])
    return name, replace(architecture, config={**architecture.config, "architectures": [classifier]})


def first_position(file: GgufFile, model_type: object) -> int:
    """Return the number of rows that conversion cut from the start of the position table: no token uses them."""
    if model_type not in ("roberta", "xlm-roberta"):
        return 0
    pad = file.metadata.get("tokenizer.ggml.padding_token_id", PAD_TOKEN_ID)
    return 1 + pad if type(pad) is int and 0 <= pad < 2**16 else 1 + PAD_TOKEN_ID


def checkpoint_name(architecture: GgufArchitecture, name: str) -> str:
    """Return the tensor's name in transformers; an unknown name unchanged, so that the network refuses it."""
    names, prefix, own = architecture.tensors, "", name
    if name.startswith("blk.") and name.count(".") > 2:
        _, number, own = name.split(".", 2)
        names, prefix = architecture.layers, f"{architecture.layer}.{number}."
    stem, dot, kind = own.rpartition(".")
    if own in names:
        return prefix + names[own]
    return f"{prefix}{names[stem]}{dot}{kind}" if stem in names else name
