"""The facts of one model, read once from its folder: `read_spec(located) -> ModelSpec`.

Called at start, in the loading thread; tokenizer, backend and engine are made from the result. Opens JSON files, and
samples the others for the fingerprint. Nothing in the folder is executed or imported, `auto_map` least of all.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vectord.artifacts.checkpoint import find_weights
from vectord.artifacts.fingerprint import fingerprint
from vectord.artifacts.hub import Located
from vectord.artifacts.json_file import read_json_object, read_optional_json_object
from vectord.artifacts.modules import (
    DenseModule,
    Pipeline,
    Pooling,
    PoolingModule,
    SentenceConfig,
    read_pipeline,
    read_sentence_config,
)
from vectord.errors import ConfigError, ModelUnavailable

__all__ = ["DenseModule", "ModelSpec", "Pooling", "read_spec"]

log = logging.getLogger("vectord.artifacts")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    model_id: str  # as the operator named it
    revision: str | None  # commit, where the source knows one
    folder: Path
    config: Mapping[str, Any]  # config.json, as it is; only networks/ interprets it
    model_type: str  # config.json's model_type: names the module in networks/
    weights: tuple[Path, ...]  # safetensors files, in order
    tokenizer: Path  # tokenizer.json
    lowercase: bool = False  # whether texts are put in lower case before the tokenizer's own normalising
    pooling: Pooling
    include_prompt: bool = True  # whether pooling counts the prompt's tokens
    dense_modules: tuple[DenseModule, ...] = ()
    normalizes: bool  # whether the model's own pipeline ends in Normalize
    hidden_size: int
    dimensions: int  # of the dense vector, after dense_modules
    max_tokens: int  # specials included
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    fingerprint: str  # 16 hex digits over weights' identity, pooling, dense modules, prompts


def read_spec(located: Located, *, pooling: Pooling | None = None, default_prompt_name: str | None = None) -> ModelSpec:
    """Everything the rest of the process must know of the model in `located.folder`.

    pooling, default_prompt_name: the operator's, instead of the model's own. Raises ModelUnavailable, naming the file,
    for what is missing, contradictory or not supported; ConfigError for a prompt name the model does not have.
    """
    pipeline = read_pipeline(located.folder)
    transformer = pipeline.transformer
    config = read_json_object(transformer / "config.json")
    model_type = _model_type(transformer, config)
    sentence = read_sentence_config(located.folder, transformer)
    pooled = PoolingModule(mode=pooling) if pooling else pipeline.pooling or _usual_pooling(transformer, config)
    hidden_size = _hidden_size(transformer, config)
    weights = find_weights(transformer)
    tokenizer = _tokenizer(transformer)
    return ModelSpec(
        model_id=located.model_id,
        revision=located.revision,
        folder=located.folder,
        config=config,
        model_type=model_type,
        weights=weights,
        tokenizer=tokenizer,
        lowercase=sentence.lowercase,
        pooling=pooled.mode,
        include_prompt=pooled.include_prompt,
        dense_modules=pipeline.dense,
        normalizes=pipeline.normalizes,
        hidden_size=hidden_size,
        dimensions=_dimensions(hidden_size, pipeline.dense),
        max_tokens=_max_tokens(transformer, config, model_type, sentence.max_seq_length),
        prompts=sentence.prompts,
        default_prompt_name=_default_prompt_name(sentence, default_prompt_name),
        fingerprint=fingerprint(
            _fingerprinted_files(weights, pipeline, tokenizer),
            _fingerprinted_facts(model_type, pooled, pipeline, sentence),
        ),
    )


def _model_type(folder: Path, config: Mapping[str, Any]) -> str:
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", model_type):
        raise ModelUnavailable(f"{folder / 'config.json'}: model_type is missing or not a name")
    for architecture in _architectures(config):
        if architecture.endswith("ForSequenceClassification"):
            raise ModelUnavailable(f"{folder}: a classifier or reranker; this version serves embedding models")
    return model_type


def _architectures(config: Mapping[str, Any]) -> list[str]:
    names = config.get("architectures")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _usual_pooling(folder: Path, config: Mapping[str, Any]) -> PoolingModule:
    """What sentence-transformers takes for a folder that does not say: last token if it generates text, else mean."""
    mode: Pooling = "mean"
    if any(name.endswith("ForCausalLM") for name in _architectures(config)) and config.get("is_causal") is not False:
        mode = "last"
    log.warning("%s does not say how to pool: using %s; set the pooling option if that is wrong", folder, mode)
    return PoolingModule(mode=mode)


def _hidden_size(folder: Path, config: Mapping[str, Any]) -> int:
    for key in ("hidden_size", "dim", "d_model", "n_embd"):  # bert and most, distilbert, t5, gpt2
        size = config.get(key)
        if type(size) is int and 0 < size <= 2**17:
            return size
    raise ModelUnavailable(f"{folder / 'config.json'}: hidden_size is missing or not a sensible number")


def _dimensions(hidden_size: int, dense: tuple[DenseModule, ...]) -> int:
    width = hidden_size
    for module in dense:
        if module.in_features != width:
            raise ModelUnavailable(f"{module.folder}: takes {module.in_features} numbers where {width} come in")
        width = module.out_features
    return width


def _tokenizer(folder: Path) -> Path:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelUnavailable(
            f"{folder}: no tokenizer.json, the one format read; transformers' save_pretrained of a tokenizer makes it"
        )
    return path


# These count positions from pad_token_id + 1, so that many rows of the table are never a token's.
_POSITIONS_AFTER_PAD = frozenset({"camembert", "longformer", "mpnet", "roberta", "xlm-roberta", "xlm-roberta-xl"})
_NO_LIMIT = 2**20  # transformers writes 1e30 for "no limit"
_USUAL_LIMIT = 512


def _max_tokens(folder: Path, config: Mapping[str, Any], model_type: str, max_seq_length: int | None) -> int:
    """max_seq_length if the model says one, as it outranks the tokenizer's figure in sentence-transformers, else that;
    never more than there are positions."""
    positions = _sane(config.get("max_position_embeddings"))
    if positions and model_type in _POSITIONS_AFTER_PAD:
        positions -= 1 + (_sane(config.get("pad_token_id")) or 0)
    tokenizer = _sane(read_optional_json_object(folder / "tokenizer_config.json").get("model_max_length"))
    limits = [limit for limit in (max_seq_length or tokenizer, positions) if limit]
    if not limits:
        log.warning("%s does not say how long a text may be: using %d tokens", folder, _USUAL_LIMIT)
    max_tokens = min(limits, default=_USUAL_LIMIT)
    if max_tokens < 1:
        raise ModelUnavailable(f"{folder / 'config.json'}: max_position_embeddings leaves no room for a token")
    return max_tokens


def _sane(limit: Any) -> int | None:
    return int(limit) if type(limit) in (int, float) and 0 < limit <= _NO_LIMIT else None


def _default_prompt_name(sentence: SentenceConfig, wanted: str | None) -> str | None:
    if wanted is None:
        return sentence.default_prompt_name
    if wanted not in sentence.prompts:
        names = ", ".join(sentence.prompts) or "none"
        raise ConfigError(f"default_prompt_name {wanted!r}: the model has no such prompt; it has {names}")
    return wanted


def _fingerprinted_files(weights: tuple[Path, ...], pipeline: Pipeline, tokenizer: Path) -> tuple[Path, ...]:
    return (*weights, *(module.folder / "model.safetensors" for module in pipeline.dense), tokenizer)


def _fingerprinted_facts(
    model_type: str, pooling: PoolingModule, pipeline: Pipeline, sentence: SentenceConfig
) -> dict[str, object]:
    return {
        "model_type": model_type,
        "pooling": [pooling.mode, pooling.include_prompt],
        "dense": [[module.in_features, module.out_features, module.activation] for module in pipeline.dense],
        "normalizes": pipeline.normalizes,
        "lowercase": sentence.lowercase,
        "prompts": dict(sentence.prompts),
    }
