"""Names over several models, each of which makes some of the vectors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast, get_args

from vectord.config import ModelConfig
from vectord.engine.models.registry import CompositeSource, ModelSource
from vectord.engine.models.wanted import wanted_models
from vectord.engine.queue.execution import output_of
from vectord.errors import ConfigError
from vectord.schema import VectorKind

_COMPOSITE = re.compile(r"(?P<name>[^\s=]{1,200})=(?P<members>[a-z]+:[^\s+]+(\+[a-z]+:[^\s+]+)*)")


def open_composites(config: ModelConfig, models: Sequence[ModelSource]) -> list[CompositeSource]:
    """Those the operator names, and the one that dense_embedding_model means. models: as `open_models` gave them for
    this config. Raises ConfigError."""
    named = read_composites(config.composites, models)
    return [*named, *_beside_sparse(config, models)]


def read_composites(values: Sequence[str], models: Sequence[ModelSource]) -> list[CompositeSource]:
    """NAME=dense:MODEL+sparse:MODEL+colbert:MODEL, of models by any of their names. Raises ConfigError."""
    by_name = {name: model for model in models for name in (model.name, *model.aliases)}
    return [_composite(value, by_name) for value in values]


def _composite(value: str, by_name: Mapping[str, ModelSource]) -> CompositeSource:
    match = _COMPOSITE.fullmatch(value)
    if match is None:
        raise ConfigError(f"composites: expected NAME=dense:MODEL+sparse:MODEL+colbert:MODEL; got {value[:200]!r}")
    members: dict[VectorKind, str] = {}
    for part in match["members"].split("+"):
        kind, _, model = part.partition(":")
        if kind not in get_args(VectorKind) or kind in members:
            raise ConfigError(f"composites: {match['name']}: dense, sparse, colbert or tokens, each once; got {kind!r}")
        if model not in by_name:
            raise ConfigError(f"composites: {match['name']}: no model is served as {model!r}")
        if kind not in output_of(by_name[model].spec):
            raise ConfigError(f"composites: {match['name']}: {model} makes no {kind} vectors")
        members[cast(VectorKind, kind)] = by_name[model].name
    if match["name"] in by_name:
        raise ConfigError(f"composites: {match['name']} is the name of a model")
    return CompositeSource(match["name"], members)


def _beside_sparse(config: ModelConfig, models: Sequence[ModelSource]) -> list[CompositeSource]:
    """Smart Embedder's choice: dense vectors of one model, sparse and ColBERT vectors of another, as if of one."""
    if config.dense_embedding_model is None:
        return []
    # It stands first, or behind default_embedding_model, unless the two are one.
    first = wanted_models(replace(config, models=(), reranker_model=None, rerankers=()))
    dense = models[len(first) - 1]
    beside = next((model for model in models if model is not dense and _further(model)), None)
    if beside is None or _further(dense):
        return []
    if "dense" not in output_of(dense.spec):
        raise ConfigError(f"dense_embedding_model: {dense.name} makes no dense vectors")
    members: dict[VectorKind, str] = {"dense": dense.name, **dict.fromkeys(_further(beside), beside.name)}
    return [CompositeSource(f"{dense.name}+{beside.name}", members)]


def _further(model: ModelSource) -> list[VectorKind]:
    kinds: tuple[VectorKind, ...] = ("sparse", "colbert")
    return [kind for kind in kinds if kind in output_of(model.spec)]
