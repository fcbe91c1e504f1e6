"""The facts of a GGUF file as a model's folder would have them: `read_model(path, allowed) -> GgufModel`.

folder.py calls it at start. Keys of the metadata become keys of config.json, and tensors get the names that they have
in transformers, so that compute/networks reads both alike. Every key of the metadata is read here or in tokenizer.py,
or is in HARMLESS; any other stops the load.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from vectord.checkpoints.config_keys import Harmless, harmless, one_of, refuse_unread
from vectord.checkpoints.files.gguf_file import GgufFile, read_gguf
from vectord.checkpoints.files.read import Settings, map_file
from vectord.checkpoints.gguf import tokenizer
from vectord.checkpoints.gguf.architectures import (
    DENSE,
    RANK,
    RANKED,
    GgufArchitecture,
    find_architecture,
    first_position,
)
from vectord.checkpoints.spec import DenseModule, Pooling
from vectord.errors import ModelUnavailable

log = logging.getLogger("vectord.checkpoints")

_WHOLE_LIMIT = 2**31
_POOLINGS: Mapping[int, Pooling] = {1: "mean", 2: "cls", 3: "last"}
_NO_POOLING = 0


class GgufModel(msgspec.Struct, frozen=True, kw_only=True):
    config: Settings
    max_tokens: int  # special tokens included
    pooling: Pooling | None  # None: the file does not say
    dense: tuple[DenseModule, ...]
    question: str | None  # the words of a reranker that answers yes or no, "" if the file has none; None: another model
    names: tuple[str, ...]  # of the model, as the file gives them, for the catalogue


# --- keys of the metadata that may be unread -------------------------------------------------------------------

_IDS = ("_token_id", "_token_ids")
_IGNORED_PREFIXES = (
    "general.",  # names, links and sizes, but for the keys in HARMLESS
    "imatrix.",
    "quantize.imatrix.",  # how the file was made
    "tokenizer.chat_template",  # conversations
)
HARMLESS: Mapping[str, Harmless] = {
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
    is_judge = config["architectures"] == ["Qwen3ForSequenceClassification"]
    return GgufModel(
        config=Settings(path, config, allowed),
        max_tokens=context,
        pooling=pooling,
        dense=_dense_modules(path, architecture, file),
        question=metadata.value("tokenizer.chat_template.rerank", str, "") if is_judge else None,
        names=_names(file.metadata),
    )


class _Keys:
    """Reads the keys of one architecture, and names them in errors."""

    def __init__(self, metadata: Settings, name: str) -> None:
        self.metadata = metadata
        self.prefix = f"{name}."

    def __contains__(self, key: str) -> bool:
        return self.prefix + key in self.metadata

    def whole(self, key: str, default: int | None = None, *, at_least: int = 1) -> int:
        return self.metadata.whole(self.prefix + key, default, least=at_least, most=_WHOLE_LIMIT - 1)

    def causal(self) -> bool:
        return self.metadata.flag(f"{self.prefix}attention.causal", True)

    def real(self, key: str, default: float | None = None) -> float:
        value = self.metadata.get(self.prefix + key, default)
        if type(value) not in (int, float) or not math.isfinite(value) or value <= 0:
            raise self.refuse(key, value, "a number above 0")
        return float(value)

    def refuse(self, key: str, value: object, expected: str) -> ModelUnavailable:
        found = "nothing" if value is None else repr(value)[:80]
        return ModelUnavailable(f"{self.metadata.path}: {self.prefix}{key} must be {expected}; found {found}")


def _config(keys: _Keys, architecture: GgufArchitecture, file: GgufFile) -> dict[str, Any]:
    """config.json of the model. Sizes that the tensors have are taken from them."""
    config = dict(architecture.config)
    optional = {"attention.key_length", "attention.head_count_kv"}
    for key, name in architecture.whole.items():
        if key in keys or key not in optional:
            config[name] = keys.whole(key)
    for key, name in architecture.real.items():
        config[name] = keys.real(key, architecture.defaults.get(key))
    config["vocab_size"] = _rows(keys, file, "token_embd.weight")
    if "token_types" in architecture.tensors:
        config["type_vocab_size"] = _rows(keys, file, "token_types.weight")
    if "output" in architecture.tensors:
        config["tie_word_embeddings"] = "output.weight" not in file.tensors
    config |= {key: tensor in file.tensors for key, tensor in _BIASES.get(config["model_type"], {}).items()}
    if config["model_type"] in _CHOSEN_DIRECTION and "attention.causal" in keys:
        config["is_causal"] = keys.causal()
    _add_own(keys, config, file)
    if config["architectures"][0].endswith("ForSequenceClassification") or "classifier.output_labels" in keys:
        labels = keys.metadata.get(f"{keys.prefix}classifier.output_labels")
        if labels is not None and (not isinstance(labels, list) or not labels):
            raise keys.refuse("classifier.output_labels", labels, "a list of texts")
        if config["model_type"] == "qwen3":
            if labels != _ANSWERS or _rows(keys, file, "cls.output.weight") != len(_ANSWERS):
                raise keys.refuse(
                    "classifier.output_labels", labels, "yes and no, with a row of cls.output.weight each"
                )
            config["num_labels"] = 1  # the score: "yes" less "no"
        elif labels is not None:
            config["id2label"] = {str(i): label for i, label in enumerate(labels)}
        else:
            config["num_labels"] = _rows(keys, file, "cls.output.weight")
    return config


def _add_own(keys: _Keys, config: dict[str, Any], file: GgufFile) -> None:
    """Keys that only one kind of network has."""
    match config["model_type"]:
        case "gemma3_text":
            config["query_pre_attn_scalar"] = config.get("head_dim")
            _add_windows(keys, config)
        case "modernbert":
            _add_windows(keys, config)
            pooling = keys.whole("classifier.pooling_type", 1)
            config["classifier_pooling"] = _POOLINGS.get(pooling)
            config["hidden_activation"] = keys.metadata.value(f"{keys.prefix}hidden_activation", str, "gelu")
        case "lfm2":
            # Layers without heads of keys are convolutions.
            counts = keys.metadata.get(f"{keys.prefix}attention.head_count_kv")
            layers = config["num_hidden_layers"]
            if not isinstance(counts, np.ndarray) or counts.dtype.kind not in "iu" or len(counts) != layers:
                raise keys.refuse("attention.head_count_kv", counts, "a list of one whole number a layer")
            heads = {int(count) for count in counts} - {0}
            if len(heads) != 1:
                raise keys.refuse("attention.head_count_kv", counts, "0 and one other number")
            config["num_key_value_heads"] = heads.pop()
            config["layer_types"] = ["full_attention" if count else "conv" for count in counts]
            if not keys.causal():
                config["architectures"] = ["Lfm2BidirectionalModel"]
        case "llama" | "llama_bidirec":
            _add_scaling(keys, config, file)
        case "bert" | "roberta" | "xlm-roberta" if "position_embedding_type" not in config:
            skipped = first_position(file, config["model_type"])
            config["max_position_embeddings"] = _rows(keys, file, "position_embd.weight") + skipped
            if skipped:
                config["pad_token_id"] = skipped - 1


_CHOSEN_DIRECTION = frozenset({"llama", "qwen2", "qwen3"})  # of the others, the class decides
# Keys of config.json for the biases of layers, and a tensor that exists only with these biases.
_LLAMAS_BIASES = {"attention_bias": "blk.0.attn_output.bias", "mlp_bias": "blk.0.ffn_up.bias"}
_BIASES: Mapping[str, Mapping[str, str]] = {
    **dict.fromkeys(("eurobert", "llama", "llama_bidirec"), _LLAMAS_BIASES),
    "qwen3": {"attention_bias": "blk.0.attn_output.bias"},
}


def _add_windows(keys: _Keys, config: dict[str, Any]) -> None:
    """Which layers slide: a boolean each, or by number all but every n-th from the first on."""
    name = "attention.sliding_window_pattern"
    pattern = keys.metadata.get(keys.prefix + name)
    if pattern is None:
        return
    if type(pattern) is int and config["model_type"] == "modernbert":
        config["global_attn_every_n_layers"] = keys.whole(name)
        return
    if not isinstance(pattern, np.ndarray) or pattern.dtype.kind != "b" or len(pattern) != config["num_hidden_layers"]:
        raise keys.refuse(name, pattern, "a list of one boolean a layer")
    config["layer_types"] = ["sliding_attention" if slides else "full_attention" for slides in pattern]


# Of Llama 3.1 to 3.3, which differ in the factor only. The file has the result: a divisor of each frequency.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def _add_scaling(keys: _Keys, config: dict[str, Any], file: GgufFile) -> None:
    """The scaled positions of Llama 3; other divisors are refused."""
    tensor = file.tensors.get("rope_freqs.weight")
    if tensor is None:
        return
    head_size = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    low, high, positions = _LLAMA3.values()
    turns = positions * config["rope_theta"] ** -(np.arange(0, head_size, 2) / head_size) / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1)
    if tensor.type.name == "F32" and tensor.shape == kept.shape:
        divisors = tensor.blocks.view(np.float32)
        factor = float(divisors.max())
        if factor > 1 and np.allclose(divisors, 1 / (kept + (1 - kept) / factor), rtol=1e-4):
            config["rope_scaling"] = {"rope_type": "llama3", "factor": factor, **_LLAMA3}
            return
    raise ModelUnavailable(
        f"{keys.metadata.path}: tensor 'rope_freqs.weight' scales positions in another way than Llama 3, which is not "
        "supported"
    )


_ANSWERS = ["yes", "no"]


def _rows(keys: _Keys, file: GgufFile, name: str) -> int:
    tensor = file.tensors.get(name)
    if tensor is None or len(tensor.shape) != 2:
        raise ModelUnavailable(f"{keys.metadata.path}: no tensor {name} with rows and columns")
    return tensor.shape[0]


def _pooling(keys: _Keys, config: Mapping[str, Any]) -> Pooling | None:
    if "pooling_type" not in keys:
        return None
    value = keys.whole("pooling_type", at_least=0)
    if value == RANK and config["architectures"][0].endswith("ForSequenceClassification"):
        return None
    if value not in _POOLINGS and value != _NO_POOLING:
        ranked = ", ".join(sorted(RANKED))
        raise keys.refuse("pooling_type", value, f"0 (none), 1 (mean), 2 (cls) or 3 (last), or 4 (rank) of {ranked}")
    return _POOLINGS.get(value)


def _harmless(keys: _Keys, config: Mapping[str, Any]) -> dict[str, Harmless]:
    """HARMLESS, and the keys of the architecture that may only have the value that follows from the others."""
    heads, width = config["num_attention_heads"], config["hidden_size"]
    head_size = config.get("head_dim", width // heads)
    implied: dict[str, object] = {
        "attention.causal": False,
        "attention.head_count_kv": heads,
        "attention.key_length": head_size,
        "attention.layer_norm_rms_epsilon": config.get("norm_eps"),
        "attention.value_length": head_size,
        "rope.dimension_count": head_size,
    }
    values = {name: Harmless("implied by other keys", one_of(value)) for name, value in implied.items()}
    # Ids of tokens that tokenizer.HARMLESS lacks are for generation of text.
    names = [key for key in keys.metadata if key.startswith(_IGNORED_PREFIXES) or key.endswith(_IDS)]
    ignored = dict.fromkeys(names, Harmless("a name"))
    own = {keys.prefix + name: why for name, why in {**_HARMLESS_OF_ARCHITECTURE, **values}.items()}
    return {**ignored, **HARMLESS, **own}


def _dense_modules(path: Path, architecture: GgufArchitecture, file: GgufFile) -> tuple[DenseModule, ...]:
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
