"""The models that the operator requests, the names that clients may use for each, and composites of several models."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import cast, get_args

from msgspec.structs import replace

from vectord.checkpoints.catalogue import hub_id_of, other_names
from vectord.checkpoints.hub import is_model_folder, model_id_of
from vectord.checkpoints.spec import RequestedModel
from vectord.config import ModelConfig
from vectord.engine.models.registry import CompositeSource, ModelSource
from vectord.errors import ConfigError
from vectord.schema import VectorKind

_ALIAS = re.compile(r"(?P<alias>[^\s=]{1,200})=(?P<model>.+)")
_LORA = re.compile(r"((?P<model>[^=]+):)?(?P<name>[^\s=:]{1,200})=(?P<folder>.+)")
_COMPOSITE = re.compile(r"(?P<name>[^\s=]{1,200})=(?P<members>[a-z]+:[^+]+(\+[a-z]+:[^+]+)*)")


def requested_models(config: ModelConfig, names: Sequence[str] = ()) -> list[RequestedModel]:
    """The models of these names, by default of config.in_order, each once, even if a hub model is named in two ways.

    Each is that of the operator's catalogue, else a folder in model_path (named after the model or the last part of its
    hub id), else one of the hub.
    """
    entries: dict[str, RequestedModel] = {}  # of the operator's catalogue
    if config.model_catalogue is not None:
        from vectord.checkpoints.catalogue_file import read_catalogue_file  # noqa: PLC0415 - yaml takes 15 ms

        entries = {entry.name or "": entry for entry in read_catalogue_file(Path(config.model_catalogue))}
    requested: dict[RequestedModel, RequestedModel] = {}
    for name in names or config.in_order:
        one = entries.get(name) or RequestedModel(name)
        if config.model_path is not None:
            hub_id = hub_id_of(one.model)
            names_there = filter(None, (hub_id, hub_id.rpartition("/")[2]))
            folders = (Path(config.model_path).expanduser() / each for each in names_there)
            if (folder := next(filter(is_model_folder, folders), None)) is not None:
                one = replace(one, model=str(folder.absolute()), name=one.name or one.model)
        # Equal for two names of one model: a catalogue name and its hub id.
        requested.setdefault(replace(one, model=hub_id_of(one.model)), one)
    return list(requested.values())


# --- names ----------------------------------------------------------------------------------------------------


def named(requested: Sequence[RequestedModel], config: ModelConfig) -> list[RequestedModel]:
    """The models with their names for clients and their adapters.

    Raises ConfigError for a name or an adapter of no model, a name of two models, and another form of a setting.
    """
    given = config.served_model_name
    if len(given) > len(requested):
        raise ConfigError(f"served_model_name: {len(given)} names for {len(requested)} models")
    names = [*given, *(one.name or model_id_of(one.model) for one in requested[len(given) :])]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two models would be served as {name}; give each its own served_model_name")
    aliases = _further_names(requested, names, config.model_aliases)
    for name in config.pinned_models:
        if name not in names:
            raise ConfigError(f"pinned_models: no model is served as {name!r}; served: {', '.join(names)}")
    found = [
        replace(one, served_name=name, aliases=aliases[name], pinned=name in config.pinned_models)
        for one, name in zip(requested, names, strict=True)
    ]
    names_of = [{one.name, one.model, hub_id_of(one.model), one.served_name} for one in found]
    for text in config.lora:  # NAME=FOLDER of the only model, or MODEL:NAME=FOLDER, by its own name or that for clients
        match = _LORA.fullmatch(text)
        if match is None:
            raise ConfigError(f"lora: expected NAME=FOLDER or MODEL:NAME=FOLDER; got {text[:200]!r}")
        model, name = match["model"], match["name"]
        places = [i for i, own in enumerate(names_of) if (len(found) == 1 if model is None else model in own)]
        if len(places) != 1:
            which = "name the model: MODEL:NAME=FOLDER" if model is None else f"{model} is none of the models"
            raise ConfigError(f"lora: {name}: {which}")
        (place,) = places
        adapters = found[place].adapters
        if name in dict(adapters):
            raise ConfigError(f"lora: {name}: the model has an adapter of this name")
        adapters = (*adapters, (name, Path(match["folder"]).expanduser()))
        found[place] = replace(found[place], adapters=adapters)
    return found


def _further_names(
    requested: Sequence[RequestedModel], names: Sequence[str], given: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Served name -> its aliases: the operator's NAME=MODEL (`given`), and those that follow from the model (the
    operator's name, its id, the catalogue's names, the id's last part). A name that fits two models is none's alias."""
    derived = {}
    for name, one in zip(names, requested, strict=True):
        model_id = model_id_of(one.model)
        own_names = (one.name, model_id, *other_names(model_id), model_id.split("/")[-1])
        derived[name] = dict.fromkeys(filter(None, own_names))
    count = [alias for aliases in derived.values() for alias in aliases].count
    own = {
        name: [alias for alias in aliases if alias not in names and count(alias) == 1]
        for name, aliases in derived.items()
    }
    model_of = {alias: name for name, aliases in own.items() for alias in (name, *aliases)}
    set_aliases: dict[str, str] = {}
    for text in given:
        match = _ALIAS.fullmatch(text)
        if match is None:
            raise ConfigError(f"model_aliases: expected NAME=MODEL, got {text[:200]!r}")
        alias, model = match["alias"], match["model"]
        if model not in model_of:
            raise ConfigError(f"model_aliases: {alias}: no model is served as {model!r}; served: {', '.join(names)}")
        if alias in names or alias in set_aliases:
            raise ConfigError(f"model_aliases: {alias} is taken")
        set_aliases[alias] = model_of[model]
    return {
        name: (
            *(alias for alias in aliases if alias not in set_aliases),
            *(alias for alias, target in set_aliases.items() if target == name),
        )
        for name, aliases in own.items()
    }


# --- composites -----------------------------------------------------------------------------------------------


def open_composites(config: ModelConfig, models: Sequence[ModelSource]) -> list[CompositeSource]:
    """The configured composites, and the one that dense_embedding_model implies: dense vectors of that model, sparse
    and ColBERT vectors of another, under one name. models: `open_models` of this config."""
    composites = read_composites(config.composites, models)
    if config.dense_embedding_model is None:
        return composites
    # It is the first model, or the one after default_embedding_model, unless they are the same.
    first = requested_models(dataclasses.replace(config, models=(), reranker_model=None, rerankers=()))
    dense = models[len(first) - 1]
    other = next((model for model in models if model is not dense and _further_kinds(model)), None)
    if other is None or _further_kinds(dense):
        return composites
    if dense.failure is None and "dense" not in dense.spec.kinds:
        raise ConfigError(f"dense_embedding_model: {dense.name} makes no dense vectors")
    members: dict[VectorKind, str] = {"dense": dense.name, **dict.fromkeys(_further_kinds(other), other.name)}
    return [*composites, CompositeSource(f"{dense.name}+{other.name}", members)]


def read_composites(values: Sequence[str], models: Sequence[ModelSource]) -> list[CompositeSource]:
    """values: NAME=dense:MODEL+sparse:MODEL+colbert:MODEL, a MODEL by any of its names."""
    by_name = {name: model for model in models for name in (model.name, *model.aliases)}
    composites = []
    for value in values:
        match = _COMPOSITE.fullmatch(value)
        if match is None:
            raise ConfigError(f"composites: expected NAME=dense:MODEL+sparse:MODEL+colbert:MODEL; got {value[:200]!r}")
        name = match["name"]
        members: dict[VectorKind, str] = {}
        for part in match["members"].split("+"):
            kind, _, model = part.partition(":")
            if kind not in get_args(VectorKind) or kind in members:
                raise ConfigError(f"composites: {name}: dense, sparse, colbert or tokens, each once; got {kind!r}")
            if model not in by_name:
                raise ConfigError(f"composites: {name}: no model is served as {model!r}")
            if by_name[model].failure is None and kind not in by_name[model].spec.kinds:
                raise ConfigError(f"composites: {name}: {model} makes no {kind} vectors")
            members[cast(VectorKind, kind)] = by_name[model].name
        if name in by_name:
            raise ConfigError(f"composites: {name} is the name of a model")
        composites.append(CompositeSource(name, members))
    return composites


def _further_kinds(model: ModelSource) -> list[VectorKind]:
    kinds: tuple[VectorKind, ...] = ("sparse", "colbert")
    return [kind for kind in kinds if kind in model.spec.kinds]
