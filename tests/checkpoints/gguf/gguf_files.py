"""GGUF files of tiny models, written with the gguf package as llama.cpp's convert script writes them.

`write_gguf` takes a folder in transformers' layout. Names of tensors come from the package's own table, and what the
script changes in tensors is done here: rows of Llama's queries and keys, Gemma's norms, RoBERTa's positions, Nomic's
experts, LFM2's convolutions.
Source: conversion/*.py of llama.cpp.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import load_file, save_file

ARCHITECTURES: Mapping[str, gguf.MODEL_ARCH] = {
    "bert": gguf.MODEL_ARCH.BERT,
    "eurobert": gguf.MODEL_ARCH.EUROBERT,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA_EMBEDDING,
    "lfm2": gguf.MODEL_ARCH.LFM2,
    "lfm2_bidirectional": gguf.MODEL_ARCH.LFM2,
    "llama": gguf.MODEL_ARCH.LLAMA,
    "llama_bidirec": gguf.MODEL_ARCH.LLAMA_EMBED,
    "modernbert": gguf.MODEL_ARCH.MODERN_BERT,
    "nomic_bert": gguf.MODEL_ARCH.NOMIC_BERT,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "roberta": gguf.MODEL_ARCH.BERT,
    "xlm-roberta": gguf.MODEL_ARCH.BERT,
}
Add = Callable[[gguf.GGUFWriter], None]


def no_change(writer: gguf.GGUFWriter) -> None:
    """The default of `write_gguf`'s argument `add`."""


def write_gguf(
    folder: Path,
    path: Path,
    quantization: Type = Type.F32,
    *,
    metadata: Mapping[str, Any] | None = None,
    add: Add = no_change,
) -> dict[str, np.ndarray]:
    """Write the folder's model, and return transformers' tensors with the values that the file has.

    metadata: keys after the architecture's name to set, or with None to leave out; add: adds further keys and tensors.
    """
    config = json.loads((folder / "config.json").read_text())
    arch = _architecture(config)
    name = gguf.MODEL_ARCH_NAMES[arch]
    writer = gguf.GGUFWriter(path, name)
    for key, value in {**_metadata(config), **(metadata or {})}.items():
        add_value(writer, f"{name}.{key}", value)
    if "type_vocab_size" in config:
        writer.add_token_type_count(config["type_vocab_size"])
    add(writer)
    names = gguf.get_tensor_name_map(arch, _of(config, "num_hidden_layers", "n_layer"))
    stored: dict[str, np.ndarray] = {}
    for own_name, array in load_file(folder / "model.safetensors").items():
        if own_name.startswith("pooler.") or own_name.endswith("position_ids"):
            continue
        if own_name.endswith("experts.bias"):
            stored[own_name] = np.zeros_like(array)
            continue
        whole_name = f"{own_name}.weight" if own_name.endswith((".w1", ".w2")) else own_name
        target = names.get_name(whole_name, try_suffixes=(".weight", ".bias"))
        target = target or names.get_name(f"model.{whole_name}", try_suffixes=(".weight", ".bias"))
        assert target is not None, own_name
        kind = _kind(target, array, quantization)
        data = gguf.quants.quantize(_changed(own_name, array.astype(np.float32), config), kind)
        writer.add_tensor(target, data, raw_dtype=kind)
        # What _changed does to a quantized tensor is to order its rows.
        values = gguf.quants.dequantize(gguf.quants.quantize(array.astype(np.float32), kind), kind)
        stored[own_name] = values.reshape(array.shape)
    finish(writer)
    return stored


# The words of Qwen3Model.set_gguf_parameters.
RERANK_TEMPLATE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n<Query>: {query}\n"
    "<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


def write_gguf_reranker(
    folder: Path, path: Path, *, question: str | None = RERANK_TEMPLATE, labels: Sequence[str] = ("yes", "no")
) -> Path:
    """Write the Qwen3-Reranker in the folder: of its head only the rows of the labels. question: None: leave it out."""
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    words = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    head = tensors.pop("lm_head.weight", tensors["model.embed_tokens.weight"])
    bare = path.with_name("without head")
    bare.mkdir()
    (bare / "config.json").write_text(json.dumps(config))
    save_file(tensors, bare / "model.safetensors")

    def add(writer: gguf.GGUFWriter) -> None:
        add_vocabulary(writer, folder / "tokenizer.json")
        writer.add_array("qwen3.classifier.output_labels", labels)
        writer.add_tensor("cls.output.weight", head[[words[label] for label in labels]])
        if question is not None:
            writer.add_chat_template([{"name": "rerank", "template": question}])

    write_gguf(bare, path, metadata={"pooling_type": int(gguf.PoolingType.RANK)}, add=add)
    return path


def _architecture(config: Mapping[str, Any]) -> gguf.MODEL_ARCH:
    match config.get("position_embedding_type"):
        case "alibi":
            return gguf.MODEL_ARCH.JINA_BERT_V2
        case "rotary":
            return gguf.MODEL_ARCH.JINA_BERT_V3
    return gguf.MODEL_ARCH.NOMIC_BERT_MOE if config.get("num_experts") else ARCHITECTURES[config["model_type"]]


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Add a key of the type that llama.cpp has for such a value; None: nothing."""
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case list():
            writer.add_array(key, value)


def _metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    """As TextModel.set_gguf_parameters, and what the classes of the architectures add."""
    is_rotary = config.get("position_embedding_type") == "rotary"
    skipped = 1 + config["pad_token_id"] if "roberta" in config["model_type"] and not is_rotary else 0
    rope = config.get("rope_parameters") or {}
    base = rope.get("full_attention", rope).get("rope_theta", config.get("rotary_emb_base"))
    is_encoder = "num_key_value_heads" not in config
    facts = {
        "block_count": _of(config, "num_hidden_layers", "n_layer"),
        "context_length": _of(config, "max_position_embeddings", "n_positions") - skipped,
        "embedding_length": _of(config, "hidden_size", "n_embd"),
        "feed_forward_length": _of(config, "intermediate_size", "n_inner"),
        "attention.head_count": _of(config, "num_attention_heads", "n_head"),
        "attention.head_count_kv": config.get("num_key_value_heads"),
        "attention.key_length": config.get("head_dim"),
        "attention.value_length": config.get("head_dim"),
        "attention.layer_norm_epsilon": _of(config, "layer_norm_eps", "layer_norm_epsilon"),
        "attention.layer_norm_rms_epsilon": _of(config, "rms_norm_eps", "norm_eps"),
        "attention.causal": False if is_encoder else None,
        "rope.freq_base": None if base is None else float(base),
        "rope.freq_base_swa": rope.get("sliding_attention", {}).get("rope_theta"),
        "pooling_type": int(gguf.PoolingType.MEAN if is_encoder else gguf.PoolingType.LAST),
    }
    match config["model_type"]:
        case "nomic_bert" if "num_experts" in config:
            facts |= {
                "expert_count": config["num_experts"],
                "expert_used_count": config["moe_top_k"],
                "moe_every_n_layers": config["moe_every_n_layers"],
            }
        case "modernbert":
            facts |= {
                "attention.layer_norm_epsilon": config["norm_eps"],  # the published config has both keys
                "attention.sliding_window": config["local_attention"],
                "attention.sliding_window_pattern": config.get("global_attn_every_n_layers", 3),
                "rope.scaling.type": "none",
                "vocab_size": config["vocab_size"],
                "hidden_activation": config["hidden_activation"],
                "classifier.pooling_type": int(gguf.PoolingType[config["classifier_pooling"].upper()]),
            }
        case "eurobert":
            facts |= {"attention.causal": False, "rope.scaling.type": "none"}
        case "lfm2" | "lfm2_bidirectional" as model_type:
            facts |= {
                "attention.head_count_kv": [
                    config["num_key_value_heads"] * (kind != "conv") for kind in config["layer_types"]
                ],
                "shortconv.l_cache": config["conv_L_cache"],
                "vocab_size": config["vocab_size"],
                "attention.causal": False if model_type != "lfm2" else None,
            }
        case "gemma3_text":
            pattern = [kind == "sliding_attention" for kind in config["layer_types"]]
            facts |= {"attention.sliding_window": config["sliding_window"], "attention.sliding_window_pattern": pattern}
        case "llama" | "llama_bidirec":
            facts |= {"rope.dimension_count": config["head_dim"], "vocab_size": config["vocab_size"]}
    return facts


def _of(config: Mapping[str, Any], *keys: str) -> Any:
    return next((config[key] for key in keys if key in config), None)


def _kind(target: str, array: np.ndarray, quantization: Type) -> Type:
    # Quantization is by rows, and those of ffn_down_exps are not the array's.
    plain = ("position_embd", "token_types", "ffn_gate_inp", "shortconv.conv", "ffn_down_exps")
    if array.ndim < 2 or any(name in target for name in plain):
        return Type.F32
    if array.shape[-1] % gguf.GGML_QUANT_SIZES[quantization][0]:
        return Type.F16
    return quantization


def _changed(name: str, array: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    if config["model_type"] == "gemma3_text" and name.endswith("norm.weight"):
        return array + 1
    if "roberta" in config["model_type"] and name == "embeddings.position_embeddings.weight":
        return array[1 + config["pad_token_id"] :]
    if name.endswith((".w1", ".w2")) and "experts" in name:
        array = array.reshape(config["num_experts"], config["n_inner"], config["n_embd"])
        return array if name.endswith("1") else np.ascontiguousarray(array.swapaxes(1, 2))
    if name.endswith("conv.conv.weight"):
        return array[:, 0]
    if config["model_type"] in ("llama", "llama_bidirec") and (".q_proj." in name or ".k_proj." in name):
        heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
        halves = array.reshape(heads, 2, len(array) // heads // 2, *array.shape[1:])
        return halves.swapaxes(1, 2).reshape(array.shape)
    return array


# --- vocabularies ---------------------------------------------------------------------------------------------

KINDS = {"WordPiece": "bert", "BPE": "gpt2", "Unigram": "t5"}


def add_words(writer: gguf.GGUFWriter, kind: str = "gpt2", size: int = 8) -> None:
    """The least that a reader of the model's facts needs; no tokenizer can be made of it."""
    writer.add_tokenizer_model(kind)
    writer.add_token_list([f"t{i}" for i in range(size)])


def add_vocabulary(writer: gguf.GGUFWriter, tokenizer: Path, pre: str = "qwen2", *, kind: str | None = None) -> None:
    """The vocabulary of a tokenizer.json: get_vocab_base of the script, and SpecialVocab."""
    fields = json.loads(tokenizer.read_text())
    model = fields["model"]
    kind = kind or KINDS[model["type"]]
    added = {token["id"]: token for token in fields["added_tokens"]}
    pieces = model["vocab"] if isinstance(model["vocab"], list) else None
    ids = {i: piece for i, (piece, _) in enumerate(pieces)} if pieces else {i: t for t, i in model["vocab"].items()}
    ids |= {i: token["content"] for i, token in added.items()}
    tokens, types = [], []
    for i in range(max(ids) + 1):
        token = ids.get(i, f"[PAD{i}]")
        types.append(_type(i, token, ids, added, model, kind))
        if kind == "bert" and types[-1] != gguf.TokenType.CONTROL:
            token = token[2:] if token.startswith("##") else "\u2581" + token
        tokens.append(token.replace("\u2581", " ") if types[-1] == gguf.TokenType.USER_DEFINED else token)
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if pieces:
        writer.add_token_scores([score for _, score in pieces])
    elif kind == "llama":
        ranks: dict[str, int] = {}
        for rank, (left, right) in enumerate(model["merges"]):
            ranks.setdefault(left + right, rank)
        writer.add_token_scores([-float(ranks.get(ids.get(i, ""), 10**6)) for i in range(len(tokens))])
    elif kind == "gpt2":
        writer.add_token_merges([" ".join(merge) for merge in model["merges"]])


def _type(
    i: int,
    token: str,
    ids: Mapping[int, str],
    added: Mapping[int, Any],
    model: Mapping[str, Any],
    kind: str,
) -> gguf.TokenType:
    if i not in ids:
        return gguf.TokenType.UNUSED
    if kind in ("llama", "t5") and (token == model.get("unk_token") or i == model.get("unk_id")):
        return gguf.TokenType.UNKNOWN
    if i in added:
        return gguf.TokenType.CONTROL if added[i]["special"] else gguf.TokenType.USER_DEFINED
    if kind == "llama" and len(token) == 6 and token.startswith("<0x"):
        return gguf.TokenType.BYTE
    return gguf.TokenType.NORMAL


def bert_bytes(changed: Mapping[str, Any] | None = None) -> bytes:
    """A whole file of the least BERT: every kind of key and of block, and a vocabulary. changed: keys to set."""
    rng = np.random.default_rng(0)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "m.gguf"
        writer = gguf.GGUFWriter(path, "bert")
        for key, value in {**LEAST, **(changed or {})}.items():
            add_value(writer, key, value)
        for name, shape in {"token_embd": (7, 32), "token_types": (2, 32), "position_embd": (16, 32)}.items():
            writer.add_tensor(f"{name}.weight", rng.standard_normal(shape).astype(np.float32))
        matrix = gguf.quants.quantize(rng.standard_normal((32, 32)).astype(np.float32), Type.Q8_0)
        writer.add_tensor("blk.0.attn_q.weight", matrix, raw_dtype=Type.Q8_0)
        finish(writer)
        return path.read_bytes()


LEAST: Mapping[str, Any] = {
    "bert.block_count": 1,
    "bert.context_length": 16,
    "bert.embedding_length": 32,
    "bert.feed_forward_length": 32,
    "bert.attention.head_count": 4,
    "bert.attention.layer_norm_epsilon": 1e-12,
    "bert.attention.causal": False,
    "bert.pooling_type": 1,
    "tokenizer.ggml.model": "bert",
    "tokenizer.ggml.pre": "bert-bge",
    "tokenizer.ggml.tokens": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "\u2581a", "b"],
    "tokenizer.ggml.token_type": [3, 3, 3, 3, 3, 1, 1],
    "tokenizer.ggml.bos_token_id": 2,
    "tokenizer.ggml.seperator_token_id": 3,
    "tokenizer.ggml.unknown_token_id": 1,
    "tokenizer.ggml.padding_token_id": 0,
    "tokenizer.ggml.mask_token_id": 4,
}
