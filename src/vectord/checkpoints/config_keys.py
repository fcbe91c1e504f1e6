"""Refuses configuration keys of a model that no code has read: `refuse_unread(settings, harmless)`.

An unread key could change the vectors, so it stops the load, unless a table here or in networks/ says why it has no
effect, transformers ignores it too, or the operator allows it by name. The code that reads a file calls this after its
last `get`.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from vectord.checkpoints.files.read import OPTION, Settings
from vectord.errors import ModelUnavailable

REFERENCE_KEYS = Path(__file__).with_name("reference_keys.json")  # written by tests/compute/networks/reference_keys.py

log = logging.getLogger("vectord.checkpoints")


class Harmless(msgspec.Struct, frozen=True):
    """Why a key has no effect on the results, with any value or with some."""

    reason: str
    accepts: Callable[[Any], bool] = lambda value: True


def refuse_unread(
    settings: Settings, harmless: Mapping[str, Harmless], is_read: Callable[[str], bool] = lambda key: True
) -> None:
    """Raise ModelUnavailable, naming key and file, for the first unread key that is neither null nor harmless.

    is_read: whether transformers reads a key; one that it ignores is logged once, and ignored here too.
    """
    ignored = []
    for key, value in settings.unread().items():
        known, name = harmless.get(key), key[:80]
        if value is None or (known is not None and known.accepts(value)):
            continue
        if known is not None or is_read(key):
            raise ModelUnavailable(
                f"{settings.path}: {name} {repr(value)[:80]} is not supported and could change the results; "
                f"{OPTION} {name} ignores it"
            )
        ignored.append(name)
    if ignored:
        _log_ignored(settings.path, tuple(ignored))


@cache  # a network is made several times
def _log_ignored(path: Path, keys: tuple[str, ...]) -> None:
    log.info("%s: ignored, as by transformers: %s", path, ", ".join(keys))


@cache
def _reference() -> Mapping[str, Any]:
    table: dict[str, Any] = json.loads(REFERENCE_KEYS.read_text("utf-8"))
    return table


def class_defaults(model_type: str) -> dict[str, Any]:
    """Return what transformers' config class of this model_type has for keys that files leave out."""
    return dict(_reference()["defaults"][model_type])


def refuse_unread_config(config: Settings, model_type: str, own: Mapping[str, Harmless], sources: str = "") -> None:
    """`refuse_unread` of a config.json, or a section of it, for transformers' class of this model_type.

    own: harmless keys besides CONFIG's. sources: the code of the classes that compute the model, for a model_type that
    the generated table lacks. Code of the model's own (auto_map) may read any key.
    """
    table, known = _reference(), {**CONFIG, **own}
    names = table["model_types"].get(model_type, sources)
    if not names or config.fields.get("auto_map"):
        refuse_unread(config, known)
    else:
        reads = frozenset(re.findall(r"\w+", names)).union(table["shared"].split())
        refuse_unread(config, known, reads.__contains__)


def refuse_null(settings: Settings, keys: str) -> None:
    """Raise ModelUnavailable for the first of `keys`, separated by spaces, that is null: sentence-transformers gives
    null to the class, in place of the class's default."""
    for key in keys.split():
        if key in settings and settings.fields[key] is None and key not in settings.allowed:
            raise ModelUnavailable(f"{settings.path}: {key} null is not supported")


def one_of(*values: object) -> Callable[[Any], bool]:
    """Return a predicate: whether a value equals one of `values`, with the same type (false is not 0)."""
    return lambda value: any(type(value) is type(each) and value == each for each in values)


def harmless(reason: str, keys: str, *values: object) -> dict[str, Harmless]:
    """Return the table of `keys`, separated by spaces: harmless with one of `values`, or with any if there are none."""
    return {key: Harmless(reason, one_of(*values)) if values else Harmless(reason) for key in keys.split()}


# --- config.json: keys that transformers' classes or published models with code of their own (auto_map) have; each
# class in networks/ has its own, HARMLESS ------------------------------------------------------------------------

CONFIG: Mapping[str, Harmless] = {
    **harmless(
        "names, versions and dtypes of the files, which the reader of the folder uses",
        "_attn_implementation_autoset _commit_hash _name_or_path architectures auto_map dtype finetuning_task "
        "model_type name_or_path torch_dtype transformers_version",
    ),
    **harmless("tokenizer.json is used unchanged", "tokenizer_class"),
    **harmless(
        "training only",
        "attention_dropout attention_probs_dropout_prob attn_pdrop classifier_dropout classifier_dropout_prob dropout "
        "embd_pdrop embedding_dropout gradient_checkpointing hidden_dropout hidden_dropout_prob initializer_factor "
        "initializer_range mlp_dropout pooler_dropout resid_pdrop",
    ),
    **harmless(
        "speed and memory only",
        "_attn_implementation attn_implementation chunk_size_feed_forward use_cache use_flash_attn",
    ),
    **harmless("generation of text only", "cache_implementation decoder_start_token_id temperature"),
    **harmless(
        "which of its results a class returns", "output_attentions output_hidden_states output_past return_dict"
    ),
    **harmless(
        "labels, scores and dimensions, which the reader of the folder uses",
        "id2label label2id matryoshka_dimensions num_labels problem_type sbert_ce_default_activation_function "
        "sentence_transformers",
    ),
    **harmless(
        "names and ids of tokens, which the tokenizer decides",
        "bos_token bos_token_id cls_token cls_token_id eos_token eos_token_id mask_token mask_token_id pad_token "
        "pad_token_id sep_token sep_token_id unk_token unk_token_id",
    ),
    **harmless("names of adapters, which their reader uses", "task_names"),
    **harmless("only heads over the vocabulary read it", "tie_word_embeddings"),
    **harmless("only decoders of text that is translated", "add_cross_attention is_decoder is_encoder_decoder", False),
}


# --- sentence_bert_config.json --------------------------------------------------------------------------------

# Arguments of from_pretrained that select files, speed or memory; default_task is read with the adapters.
_LOADING = frozenset(
    {"attn_implementation", "cache_dir", "default_task", "device_map", "dtype", "local_files_only"}
    | {"low_cpu_mem_usage", "revision", "token", "torch_dtype", "trust_remote_code", "unpad_inputs", "use_fast"}
    | {"use_memory_efficient_attention"}
)
_ARGUMENTS = Harmless("loading only", lambda value: isinstance(value, dict) and value.keys() <= _LOADING)
_TEXT_MODALITIES = tuple({"method": "forward", "method_output_name": name} for name in ("last_hidden_state", "logits"))
_OTHER_INPUTS = frozenset({"audio", "chat_template", "image", "video"})

TRANSFORMER_MODULE: Mapping[str, Harmless] = {
    **harmless("the operator chooses the backend", "backend"),
    **harmless("a folder on the machine of the author", "cache_dir"),
    **harmless("read, except for ColBERT models: pylate overwrites it for every batch", "max_seq_length"),
    **harmless("speed only", "unpad_inputs"),
    **dict.fromkeys(("config_args", "config_kwargs", "model_args", "model_kwargs", "processor_kwargs"), _ARGUMENTS),
    **dict.fromkeys(("tokenizer_args", "tokenizer_kwargs"), _ARGUMENTS),
    "modality_config": Harmless(
        "the usual input for texts", lambda value: isinstance(value, dict) and value.get("text") in _TEXT_MODALITIES
    ),
    "processing_kwargs": Harmless(
        "for inputs other than plain texts",
        lambda value: isinstance(value, dict) and {key for key, given in value.items() if given} <= _OTHER_INPUTS,
    ),
}

# --- config_sentence_transformers.json ------------------------------------------------------------------------

SENTENCE: Mapping[str, Harmless] = {
    "__version__": Harmless("versions", lambda value: isinstance(value, dict)),
    **harmless("versions", "requirements"),
    **harmless("clients compare vectors", "similarity_fn_name"),
    **harmless("the operator's choice replaces it", "default_prompt_name"),
    **harmless("rerankers read it", "activation_fn"),
    **harmless("precision only", "keep_in_fp32_modules"),
    **harmless("Stanford's name of attend_to_expansion_tokens", "attend_to_mask_tokens", False),
}

# --- modules.json: each of its entries ------------------------------------------------------------------------

MODULE: Mapping[str, Harmless] = {
    "idx": Harmless("the order of the list decides"),
    "kwargs": Harmless(
        "names of options of a call",
        lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value),
    ),
}
