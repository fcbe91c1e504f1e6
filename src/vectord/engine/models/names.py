"""What clients may call each model: the names given, the models' own, and further ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from vectord.checkpoints.catalogue import other_names
from vectord.checkpoints.spec import ModelSpec
from vectord.engine.models.wanted import Wanted
from vectord.errors import ConfigError

_ALIAS = re.compile(r"(?P<alias>[^\s=]{1,200})=(?P<model>\S+)")


def served_names(wanted: Sequence[Wanted], specs: Sequence[ModelSpec], given: Sequence[str]) -> list[str]:
    """The names given, then the models' own. Raises ConfigError for too many names, and for one name twice."""
    if len(given) > len(specs):
        raise ConfigError(f"served_model_name: {len(given)} names for {len(specs)} models")
    own = [one.name or spec.model_id for one, spec in zip(wanted, specs, strict=True)]
    names = [*given, *own[len(given) :]]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two models would be served as {name}; give each its own served_model_name")
    return names


def further_names(
    wanted: Sequence[Wanted], specs: Sequence[ModelSpec], names: Sequence[str], given: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """For each served name, what else its model may be called: what the operator says, NAME=MODEL, and what follows
    from the model. A name that two models could claim is nobody's.

    Raises ConfigError for a text of another form, a model that is not served, a name that is taken.
    """
    claims = {name: dict.fromkeys(_claims(one, spec)) for name, one, spec in zip(names, wanted, specs, strict=True)}
    claimed = [alias for aliases in claims.values() for alias in aliases]
    own = {
        name: [alias for alias in aliases if alias not in names and claimed.count(alias) == 1]
        for name, aliases in claims.items()
    }
    told = _told(given, {alias: name for name, aliases in own.items() for alias in (name, *aliases)}, names)
    further = {name: [alias for alias in aliases if alias not in told] for name, aliases in own.items()}
    for alias, name in told.items():
        further[name].append(alias)
    return {name: tuple(aliases) for name, aliases in further.items()}


def pinned_names(pinned: Sequence[str], names: Sequence[str]) -> frozenset[str]:
    """Raises ConfigError for one that no model has."""
    for name in pinned:
        if name not in names:
            raise ConfigError(f"pinned_models: no model is served as {name!r}; there are: {', '.join(names)}")
    return frozenset(pinned)


def _claims(wanted: Wanted, spec: ModelSpec) -> Iterable[str]:
    """What the operator calls it, its id, the catalogue's names, the id's last part."""
    own = () if wanted.name is None else (wanted.name,)
    return (*own, spec.model_id, *other_names(spec.model_id), spec.model_id.rpartition("/")[2])


def _told(given: Sequence[str], model_of: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Alias to served name."""
    told: dict[str, str] = {}
    for text in given:
        match = _ALIAS.fullmatch(text)
        if match is None:
            raise ConfigError(f"model_aliases: expected NAME=MODEL, got {text[:200]!r}")
        alias, model = match["alias"], match["model"]
        if model not in model_of:
            raise ConfigError(f"model_aliases: {alias}: no model is served as {model!r}; there are: {', '.join(names)}")
        if alias in names or alias in told:
            raise ConfigError(f"model_aliases: {alias} is taken")
        told[alias] = model_of[model]
    return told
