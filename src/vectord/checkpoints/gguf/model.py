"""The facts of a GGUF file as a model's folder would have them: `read_model(path, allowed) -> GgufModel`.

folder.py calls it at start. Keys of the metadata become keys of config.json, and tensors get the names that they have
in transformers, so that compute/networks reads both alike. Every key of the metadata is read here or in tokenizer.py,
or is in HARMLESS; any other stops the load.
Source: conversion/*.py of llama.cpp, which writes these files, and src/models/*.cpp, which reads them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from vectord.checkpoints.config_keys import Harmless, harmless, one_of, refuse_unread
from vectord.checkpoints.files.gguf_file import GgufFile, read_gguf
from vectord.checkpoints.files.read import Settings, map_file
from vectord.checkpoints.gguf import tokenizer
from vectord.checkpoints.spec import PAD_TOKEN_ID, DenseModule, Pooling
from vectord.errors import ModelUnavailable

log = logging.getLogger("vectord.checkpoints")

_WHOLE_LIMIT = 2**31
_POOLINGS: Mapping[int, Pooling] = {1: "mean", 2: "cls", 3: "last"}
_NO_POOLING, _SCORES = 0, 4
DENSE = ("dense_2", "dense_3")  # the layers after the pooling of EmbeddingGemma


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """How the metadata and tensors of one architecture are named in transformers."""

    config: Mapping[str, Any]  # keys of config.json with one value for all models
    whole: Mapping[str, str]  # keys of the metadata after "ARCHITECTURE.", and config.json's: whole numbers
    real: Mapping[str, str]  # the same, of other numbers
    tensors: Mapping[str, str]  # names without ".weight" and ".bias"
    layer: str  # the prefix of a layer's names
    layers: Mapping[str, str]  # names after "blk.N."
    norm_offset: float = 0.0  # added to the weights of norms
    interleaved: bool = False  # whether rows of queries and keys are ordered for rotation of adjacent pairs
    defaults: Mapping[str, Any] = {}  # llama.cpp's, for keys that are missing


class GgufModel(msgspec.Struct, frozen=True, kw_only=True):
    config: Settings
    max_tokens: int  # special tokens included
    pooling: Pooling | None  # None: the file does not say
    unsaid_end: str | None  # the end token of texts, if the file does not say whether they have it
    dense: tuple[DenseModule, ...]
    names: tuple[str, ...]  # of the model, as the file gives them, for the catalogue


# --- architectures --------------------------------------------------------------------------------------------

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

_BERT = Architecture(
    config={"model_type": "bert", "hidden_act": "gelu", "architectures": ["BertModel"]},
    whole=_SIZES,
    real=_LAYER_NORM,
    tensors={
        "token_embd": "embeddings.word_embeddings",
        "token_types": "embeddings.token_type_embeddings",
        "position_embd": "embeddings.position_embeddings",
        "token_embd_norm": "embeddings.LayerNorm",
        "cls": "classifier.dense",
        "cls.output": "classifier.out_proj",
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
_JINA = replace(
    _BERT,
    config={**_BERT.config, "position_embedding_type": "alibi", "feed_forward_type": "geglu"},
    whole={**_SIZES, **_LENGTH},
    layers={**_BERT.layers, "ffn_up": "mlp.gated_layers", "ffn_down": "mlp.wo", "layer_output_norm": "mlp.layernorm"},
)
_LLAMA = Architecture(
    config={"model_type": "llama", "hidden_act": "silu", "architectures": ["LlamaForCausalLM"]},
    whole={**_DECODER_SIZES, **_HEAD_SIZE},
    real={**_RMS_NORM, **_THETA},
    defaults={"rope.freq_base": 10_000.0},
    tensors={"token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head"},
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
_QWEN3 = replace(_QWEN2, config={**_QWEN2.config, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]})
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

ARCHITECTURES: Mapping[str, Architecture] = {
    "bert": _BERT,
    "gemma-embedding": _EMBEDDING_GEMMA,
    "gemma3": _EMBEDDING_GEMMA,  # Ollama's first EmbeddingGemma; other files are refused
    "jina-bert-v2": _JINA,
    "llama": _LLAMA,
    "nomic-bert": _NOMIC,
    "qwen2": _QWEN2,
    "qwen3": _QWEN3,
}
# By the tokenizer: llama.cpp has one architecture for BERT and its descendants.
_BERT_BY_TOKENIZER: Mapping[str, tuple[str, str]] = {  # model_type, and the prefix of its classes
    "bert": ("bert", "Bert"),
    "gpt2": ("roberta", "Roberta"),
    "t5": ("xlm-roberta", "XLMRoberta"),
}

# --- keys of the metadata that may be unread -------------------------------------------------------------------

_IGNORED_PREFIXES = (
    "general.base_model.",
    "general.dataset.",
    "general.license",
    "general.sampling.",  # generation of text
    "general.source.",
    "imatrix.",
    "quantize.imatrix.",  # how the file was made
    "tokenizer.chat_template",  # conversations
)
HARMLESS: Mapping[str, Harmless] = {
    **harmless(
        "names, links and sizes",
        "general.author general.basename general.description general.doi general.file_type general.finetune "
        "general.languages general.name general.organization general.parameter_count general.quantized_by "
        "general.repo_url general.size_label general.tags general.url general.uuid general.version",
    ),
    **harmless("the container's reader follows it", "general.alignment general.architecture"),
    **harmless("a model's file, not an adapter or a projector of images", "general.type", "model"),
    **harmless("the only version of the blocks since 2023", "general.quantization_version", 2),
    **harmless("one file holds the whole model", "split.count", 0, 1),
    **harmless("the same", "split.no split.tensors.count"),
    **tokenizer.HARMLESS,
}
_HARMLESS_OF_ARCHITECTURE: Mapping[str, Harmless] = {
    **harmless("the table of words decides", "vocab_size"),
    **harmless("the request decides", "normalize_embeddings"),
    **harmless("the tensors' shapes decide", "dense_2_feat_in dense_2_feat_out dense_3_feat_in dense_3_feat_out"),
    **harmless("the usual rotation", "rope.scaling.type", "none"),
    **harmless("only heads over the vocabulary read it", "final_logit_softcapping"),
}


# --- reading --------------------------------------------------------------------------------------------------


def read_model(path: Path, allowed: Collection[str] = ()) -> GgufModel:
    """Return the facts of the file; allowed: keys of the metadata that may be unknown."""
    mapped = map_file(path)
    file = read_gguf(path, mapped)
    metadata = Settings(path, file.metadata, allowed)
    name, architecture = find_architecture(path, file)
    keys = _Keys(metadata, name)
    config = _config(keys, architecture, file)
    context = keys.whole("context_length")
    pooling = _pooling(keys, config)
    refuse_unread(metadata, _harmless(keys, config))
    return GgufModel(
        config=Settings(path, config, allowed),
        max_tokens=context,
        pooling=pooling,
        unsaid_end=tokenizer.unsaid_end(file.metadata),
        dense=_dense_modules(path, architecture, file),
        names=_names(file.metadata),
    )


def find_architecture(path: Path, file: GgufFile) -> tuple[str, Architecture]:
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
    if name != "bert":
        return name, architecture
    model = file.metadata.get("tokenizer.ggml.model")
    if not isinstance(model, str) or model not in _BERT_BY_TOKENIZER:
        raise ModelUnavailable(
            f"{path}: tokenizer.ggml.model {str(model)[:80]!r} is not supported for general.architecture 'bert'; "
            f"supported are {', '.join(_BERT_BY_TOKENIZER)}"
        )
    model_type, prefix = _BERT_BY_TOKENIZER[model]
    # BERT's own classifier needs the pooler, which conversion leaves out.
    scores = one_of(_SCORES)(file.metadata.get(f"{name}.pooling_type")) and model_type != "bert"
    head = "ForSequenceClassification" if scores else "Model"
    return name, replace(
        architecture, config={**architecture.config, "model_type": model_type, "architectures": [prefix + head]}
    )


def first_position(file: GgufFile, model_type: object) -> int:
    """Return the number of rows that conversion cut from the start of the position table: no token uses them."""
    if model_type not in ("roberta", "xlm-roberta"):
        return 0
    pad = file.metadata.get("tokenizer.ggml.padding_token_id", PAD_TOKEN_ID)
    return 1 + pad if type(pad) is int and 0 <= pad < 2**16 else 1 + PAD_TOKEN_ID


class _Keys:
    """Reads the keys of one architecture, and names them in errors."""

    def __init__(self, metadata: Settings, name: str) -> None:
        self.metadata = metadata
        self.prefix = f"{name}."

    def __contains__(self, key: str) -> bool:
        return self.prefix + key in self.metadata

    def whole(self, key: str, default: int | None = None, *, at_least: int = 1) -> int:
        return self.metadata.whole(self.prefix + key, default, least=at_least, most=_WHOLE_LIMIT - 1)

    def real(self, key: str, default: float | None = None) -> float:
        value = self.metadata.get(self.prefix + key, default)
        if type(value) not in (int, float) or not math.isfinite(value) or value <= 0:
            raise self.refuse(key, value, "a number above 0")
        return float(value)

    def refuse(self, key: str, value: object, expected: str) -> ModelUnavailable:
        found = "nothing" if value is None else repr(value)[:80]
        return ModelUnavailable(f"{self.metadata.path}: {self.prefix}{key} must be {expected}; found {found}")


def _config(keys: _Keys, architecture: Architecture, file: GgufFile) -> dict[str, Any]:
    """config.json of the model. Sizes that the tensors have are taken from them."""
    config = dict(architecture.config)
    is_decoder = "attention.head_count_kv" in architecture.whole
    optional = {"attention.key_length", "attention.head_count_kv"}
    for key, name in architecture.whole.items():
        if key in keys or key not in optional:
            config[name] = keys.whole(key)
    for key, name in architecture.real.items():
        config[name] = keys.real(key, architecture.defaults.get(key))
    config["vocab_size"] = _rows(keys, file, "token_embd.weight")
    if is_decoder:
        config["tie_word_embeddings"] = "output.weight" not in file.tensors
        config |= {key: tensor in file.tensors for key, tensor in _BIASES.get(config["model_type"], {}).items()}
        if f"{keys.prefix}attention.causal" in keys.metadata and config["model_type"] != "gemma3_text":
            config["is_causal"] = keys.metadata.get(f"{keys.prefix}attention.causal")
    else:
        config["type_vocab_size"] = _rows(keys, file, "token_types.weight")
    match config["model_type"]:
        case "gemma3_text":
            _add_gemma(keys, config)
        case "bert" | "roberta" | "xlm-roberta" if "position_embedding_type" not in config:
            skipped = first_position(file, config["model_type"])
            config["max_position_embeddings"] = _rows(keys, file, "position_embd.weight") + skipped
            if skipped:
                config["pad_token_id"] = skipped - 1
    if "classifier.output_labels" in keys:
        labels = keys.metadata.get(f"{keys.prefix}classifier.output_labels")
        if not isinstance(labels, list) or not labels:
            raise keys.refuse("classifier.output_labels", labels, "a list of texts")
        config["id2label"] = {str(i): label for i, label in enumerate(labels)}
    elif any(name.endswith("ForSequenceClassification") for name in config["architectures"]):
        config["num_labels"] = _rows(keys, file, "cls.output.weight")
    return config


# Keys of config.json for the biases of layers, and a tensor that exists only with these biases.
_BIASES: Mapping[str, Mapping[str, str]] = {
    "llama": {"attention_bias": "blk.0.attn_output.bias", "mlp_bias": "blk.0.ffn_up.bias"},
    "qwen3": {"attention_bias": "blk.0.attn_output.bias"},
}


def _add_gemma(keys: _Keys, config: dict[str, Any]) -> None:
    config["query_pre_attn_scalar"] = config.get("head_dim")
    pattern = keys.metadata.get(f"{keys.prefix}attention.sliding_window_pattern")
    if pattern is None:
        return
    if not isinstance(pattern, np.ndarray) or pattern.dtype.kind != "b" or len(pattern) != config["num_hidden_layers"]:
        raise keys.refuse("attention.sliding_window_pattern", pattern, "a list of one boolean a layer")
    config["layer_types"] = ["sliding_attention" if slides else "full_attention" for slides in pattern]


def _rows(keys: _Keys, file: GgufFile, name: str) -> int:
    tensor = file.tensors.get(name)
    if tensor is None or len(tensor.shape) != 2:
        raise ModelUnavailable(f"{keys.metadata.path}: no tensor {name} with rows and columns")
    return tensor.shape[0]


def _pooling(keys: _Keys, config: Mapping[str, Any]) -> Pooling | None:
    if "pooling_type" not in keys:
        return None
    value = keys.whole("pooling_type", at_least=0)
    if value == _SCORES and config["architectures"][0].endswith("ForSequenceClassification"):
        return None
    if value not in _POOLINGS and value != _NO_POOLING:
        raise keys.refuse("pooling_type", value, "0 (none), 1 (mean), 2 (cls) or 3 (last), or 4 (rank) of a RoBERTa")
    return _POOLINGS.get(value)


def _harmless(keys: _Keys, config: Mapping[str, Any]) -> dict[str, Harmless]:
    """HARMLESS, and the keys of the architecture that may only have the value that follows from the others."""
    heads, width = config["num_attention_heads"], config["hidden_size"]
    head_size = config.get("head_dim", width // heads)
    implied: dict[str, object] = {
        "attention.causal": False,
        "attention.head_count_kv": heads,
        "attention.key_length": head_size,
        "attention.value_length": head_size,
        "rope.dimension_count": head_size,
    }
    values = {name: Harmless("implied by other keys", one_of(value)) for name, value in implied.items()}
    ignored = {key: Harmless("a name") for key in keys.metadata if key.startswith(_IGNORED_PREFIXES)}
    own = {keys.prefix + name: why for name, why in {**_HARMLESS_OF_ARCHITECTURE, **values}.items()}
    return {**HARMLESS, **ignored, **own}


def _dense_modules(path: Path, architecture: Architecture, file: GgufFile) -> tuple[DenseModule, ...]:
    if architecture.config["model_type"] != "gemma3_text":
        return ()
    shapes = {
        architecture.tensors.get(tensor.name.removesuffix(".weight"), tensor.name.removesuffix(".weight")): tensor.shape
        for tensor in file.tensors.values()
    }
    modules = tuple(
        DenseModule(folder=path, weights=path, layer=name, in_features=shapes[name][-1], out_features=shapes[name][0])
        for name in DENSE
        if name in shapes
    )
    if not modules:
        log.warning("%s has no dense_2 and dense_3: its vectors are not those of the published EmbeddingGemma", path)
    return modules


def _names(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    names = (metadata.get("general.name"), metadata.get("general.basename"))
    links = (metadata.get(f"general.{key}") for key in ("base_model.0.repo_url", "source.url", "source.repo_url"))
    hub = "https://huggingface.co/"
    ids = (link.removeprefix(hub) for link in links if isinstance(link, str) and link.startswith(hub))
    return tuple(name for name in (*ids, *names) if isinstance(name, str))


# --- names of tensors -----------------------------------------------------------------------------------------


def checkpoint_name(architecture: Architecture, name: str) -> str:
    """Return the tensor's name in transformers; an unknown name unchanged, so that the network refuses it."""
    stem, dot, kind = name.rpartition(".")
    if stem.startswith("blk."):
        _, number, part = stem.split(".", 2) if stem.count(".") >= 2 else ("", "", "")
        if part in architecture.layers:
            return f"{architecture.layer}.{number}.{architecture.layers[part]}{dot}{kind}"
        return name
    return f"{architecture.tensors[stem]}{dot}{kind}" if stem in architecture.tensors else name
