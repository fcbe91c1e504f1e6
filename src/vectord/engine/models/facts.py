"""The facts of one wanted model: what its files say (artifacts/), changed by what the operator says instead.

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
from vectord.engine.models.wanted import Wanted
from vectord.errors import ConfigError, ModelUnavailable

# Under this name a prompt that the operator wrote stands among the model's own.
OPERATORS_PROMPT = "default_prompt"

# Neither of BERT's kind nor Qwen's, so that no setting for lengths is about them.
_OTHER_DECODERS = frozenset({"mistral", "gemma3_text"})


def read_facts(wanted: Wanted, config: ModelConfig, graphs: Sequence[str] = ()) -> ModelSpec:
    """graphs: patterns of ONNX files that are wanted beside the rest.

    Raises StartError: a model that is nowhere or not understood, or that what the operator says does not fit.
    """
    held_to = None if config.lock_file is None else _locked(wanted, Path(config.lock_file).expanduser())
    located = resolve(
        wanted.model,
        revision=config.revision if held_to is None or _is_here(wanted) else held_to.commit,
        offline=config.offline,
        hf_home=config.hf_home,
        token=config.hf_token,
        graphs=graphs,
    )
    pooling = wanted.pooling or (None if config.pooling == "splade" else config.pooling)
    spec = read_spec(located, pooling=pooling, default_prompt_name=config.default_prompt_name, task=config.task)
    if held_to is not None:
        chosen = (path for pattern in graphs for path in located.folder.glob(pattern))
        check_folder(located.folder, held_to, (*spec.weights, spec.tokenizer, *chosen))
    if config.pooling == "splade" and "dense" in spec.outputs:
        raise ConfigError(f"pooling splade: {wanted.model} is not a SPLADE model")
    if config.dense_path is not None and "dense" in spec.outputs:
        spec = _with_dense(spec, config.dense_path)
    if config.default_prompt is not None:
        spec = _with_prompt(spec, config.default_prompt)
    if wanted.handler is not None:
        spec = _handled(spec, wanted.handler)
    shortened = replace(spec, max_tokens=min(spec.max_tokens, _most_tokens(spec, config)))
    if spec.default_prompt_name is not None or shortened.max_tokens < spec.max_tokens:
        return replace(shortened, known_cosines=())  # known of whole texts without a prompt
    return shortened


def _locked(wanted: Wanted, path: Path) -> LockedModel:
    lock = read_lock(path)
    model = locked(lock, wanted.model) or (locked(lock, wanted.name) if wanted.name is not None else None)
    if model is None:
        raise ModelUnavailable(
            f"model {wanted.name or wanted.model} is not in the lock file {path}; vectord pull adds it"
        )
    return model


def _is_here(wanted: Wanted) -> bool:
    """Whether it is a folder, which has no revision, though it can be held to a lock."""
    return Path(wanted.model).is_absolute()


def _with_dense(spec: ModelSpec, dense_path: str) -> ModelSpec:
    """With another Dense module of the same folder in the place of its own: as wide as that one makes it."""
    place = PurePath(dense_path)
    if place.is_absolute() or ".." in place.parts:
        raise ConfigError("dense_path: expected a folder inside the model's, such as 2_Dense_1024")
    dense = read_dense(Module("Dense", spec.folder / place), over="sentence_embedding")
    width = chain_width(spec.hidden_size, [dense])
    spec = replace(spec, dense_modules=(dense,), dimensions=width, matryoshka=None, known_cosines=())
    return replace(spec, fingerprint=fingerprint(spec))


def _with_prompt(spec: ModelSpec, prompt: str) -> ModelSpec:
    """With the operator's words before every text whose request asks for no others. Pairs have no prompts."""
    if len(prompt) > PROMPT_LIMIT_CHARACTERS:
        raise ConfigError(f"default_prompt: expected at most {PROMPT_LIMIT_CHARACTERS:,} characters")
    if spec.outputs == {"scores"}:
        return spec
    return replace(spec, prompts={**spec.prompts, OPERATORS_PROMPT: prompt}, default_prompt_name=OPERATORS_PROMPT)


def _handled(spec: ModelSpec, handler: str) -> ModelSpec:
    """The model as the operator's own class computes it: one vector a text, of another space than the model's own."""
    own = hashlib.sha256(f"{spec.fingerprint} by {handler}".encode()).hexdigest()[:16]
    return replace(
        spec,
        handler=handler,
        outputs=frozenset({"dense"}),
        include_prompt=True,
        lexical=None,
        colbert=None,
        known_cosines=(),
        fingerprint=own,
    )


def _most_tokens(spec: ModelSpec, config: ModelConfig) -> int:
    """What the operator allows a text, or a pair, of this kind of model; as many as it reads unless told."""
    if spec.yes_no is not None:
        most = config.qwen_rerank_max_length
    elif "scores" in spec.outputs:
        most = config.bge_rerank_max_length
    elif spec.model_type.startswith("qwen"):
        most = config.qwen_embed_max_length
    else:
        most = None if spec.model_type in _OTHER_DECODERS else config.bge_embed_max_length
    return spec.max_tokens if most is None else most
