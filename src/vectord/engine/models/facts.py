"""The ModelSpec of a requested model: what its files say, changed by the operator's settings.

Runs at start, on the main thread; may block for a download.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePath

from vectord.checkpoints.fingerprint import fingerprint
from vectord.checkpoints.folder import Module, chain_width, read_dense
from vectord.checkpoints.hub import resolve
from vectord.checkpoints.lock import LockedModel, check_folder, locked, read_lock
from vectord.checkpoints.reader import read_spec
from vectord.checkpoints.spec import PROMPT_LIMIT_CHARACTERS, ModelSpec
from vectord.config import ModelConfig
from vectord.engine.models.requested import RequestedModel
from vectord.errors import ConfigError, ModelUnavailable

OPERATORS_PROMPT = "default_prompt"  # the operator's prompt, among the model's own

# Decoders that are neither BERT's kind nor Qwen's, so that no setting of lengths applies to them.
_OTHER_DECODERS = frozenset({"mistral", "gemma3_text"})


def read_facts(requested: RequestedModel, config: ModelConfig, graphs: Sequence[str] = ()) -> ModelSpec:
    """graphs: patterns of ONNX files to download with the rest.

    Raises StartError for a model that is not found, is of an unknown kind, or does not fit the settings.
    """
    lock = None if config.lock_file is None else _locked(requested, Path(config.lock_file).expanduser())
    is_folder = Path(requested.model).is_absolute()  # a folder has no revision, but a lock can list its files
    located = resolve(
        requested.model,
        revision=config.revision if lock is None or is_folder else lock.commit,
        offline=config.offline,
        hf_home=config.hf_home,
        token=config.hf_token,
        graphs=graphs,
    )
    pooling = requested.pooling or (None if config.pooling == "splade" else config.pooling)
    spec = read_spec(located, pooling=pooling, default_prompt_name=config.default_prompt_name, task=config.task)
    if lock is not None:
        chosen = (path for pattern in graphs for path in located.folder.glob(pattern))
        check_folder(located.folder, lock, (*spec.weights, spec.tokenizer, *chosen))
    if config.pooling == "splade" and "dense" in spec.outputs:
        raise ConfigError(f"pooling splade: {requested.model} is not a SPLADE model")
    if config.dense_path is not None and "dense" in spec.outputs:
        spec = _with_dense(spec, config.dense_path)
    if config.default_prompt is not None:
        spec = _with_prompt(spec, config.default_prompt)
    if requested.handler is not None:
        spec = _with_handler(spec, requested.handler)
    shortened = replace(spec, max_tokens=min(spec.max_tokens, _max_tokens(spec, config)))
    if spec.default_prompt_name is not None or shortened.max_tokens < spec.max_tokens:
        return replace(shortened, known_cosines=())  # they hold for whole texts without a prompt
    return shortened


def _locked(requested: RequestedModel, path: Path) -> LockedModel:
    lock = read_lock(path)
    names = filter(None, (requested.model, requested.name))
    model = next((found for name in names if (found := locked(lock, name)) is not None), None)
    if model is None:
        raise ModelUnavailable(
            f"model {requested.name or requested.model} is not in the lock file {path}; vectord pull adds it"
        )
    return model


def _with_dense(spec: ModelSpec, dense_path: str) -> ModelSpec:
    """With another Dense module of the folder instead of the model's own; its width becomes the dimension."""
    place = PurePath(dense_path)
    if place.is_absolute() or ".." in place.parts:
        raise ConfigError("dense_path: expected a folder inside the model's, such as 2_Dense_1024")
    dense = read_dense(Module("Dense", spec.folder / place), over="sentence_embedding")
    width = chain_width(spec.hidden_size, [dense])
    spec = replace(spec, dense_modules=(dense,), dimensions=width, matryoshka=None, known_cosines=())
    return replace(spec, fingerprint=fingerprint(spec))


def _with_prompt(spec: ModelSpec, prompt: str) -> ModelSpec:
    """With the operator's prompt as the default of every text. Pairs have no prompts."""
    if len(prompt) > PROMPT_LIMIT_CHARACTERS:
        raise ConfigError(f"default_prompt: expected at most {PROMPT_LIMIT_CHARACTERS:,} characters")
    if spec.outputs == {"scores"}:
        return spec
    return replace(spec, prompts={**spec.prompts, OPERATORS_PROMPT: prompt}, default_prompt_name=OPERATORS_PROMPT)


def _with_handler(spec: ModelSpec, handler: str) -> ModelSpec:
    """The model as the operator's own class computes it: one vector per text, in a vector space of its own."""
    return replace(
        spec,
        handler=handler,
        outputs=frozenset({"dense"}),
        include_prompt=True,
        lexical=None,
        colbert=None,
        known_cosines=(),
        fingerprint=hashlib.sha256(f"{spec.fingerprint} by {handler}".encode()).hexdigest()[:16],
    )


def _max_tokens(spec: ModelSpec, config: ModelConfig) -> int:
    """The operator's limit for a text or pair of this kind of model; by default the model's own."""
    if spec.yes_no is not None:
        limit = config.qwen_rerank_max_length
    elif "scores" in spec.outputs:
        limit = config.bge_rerank_max_length
    elif spec.model_type.startswith("qwen"):
        limit = config.qwen_embed_max_length
    else:
        limit = None if spec.model_type in _OTHER_DECODERS else config.bge_embed_max_length
    return spec.max_tokens if limit is None else limit
