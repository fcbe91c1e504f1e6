"""Which models the operator asks for, in order, and where their files are looked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from vectord.checkpoints import catalogue
from vectord.checkpoints.spec import Pooling
from vectord.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Wanted:
    """A model the operator asks for."""

    model: str  # a folder, a package, a hub id
    name: str | None = None  # what the operator calls it, where its files have another name
    handler: str | None = None  # the operator's own class
    pooling: Pooling | None = None  # instead of the model's own


def wanted_models(config: ModelConfig) -> list[Wanted]:
    """What config.in_order names, each once, also where a model of the hub is named in two ways."""
    entries = {} if config.model_catalogue is None else _of_file(Path(config.model_catalogue))
    wanted: dict[Wanted, Wanted] = {}
    for name in config.in_order:
        one = _local(entries.get(name) or Wanted(name), config.model_path)
        wanted.setdefault(_identity(one), one)
    return list(wanted.values())


def _of_file(path: Path) -> Mapping[str, Wanted]:
    """The operator's catalogue, by name."""
    from vectord.checkpoints.catalogue_file import read_catalogue_file  # noqa: PLC0415 - yaml takes 15 ms

    read = read_catalogue_file(path)
    return {entry.name: Wanted(entry.model, entry.name, entry.handler, entry.pooling) for entry in read}


def _local(wanted: Wanted, model_path: str | None) -> Wanted:
    """The model's folder in model_path where there is one, called as before."""
    if model_path is None:
        return wanted
    entry = catalogue.find(wanted.model)
    folder = _folder_of(wanted.model if entry is None else entry.hub_id, Path(model_path).expanduser())
    return wanted if folder is None else replace(wanted, model=str(folder.absolute()), name=wanted.name or wanted.model)


def _folder_of(model: str, place: Path) -> Path | None:
    """The folder in `place` that is called as the model is, or as the last part of its id."""
    for name in (model, model.rpartition("/")[2]):
        folder = place / name
        if name and ((folder / "config.json").is_file() or (folder / "modules.json").is_file()):
            return folder
    return None


def _identity(wanted: Wanted) -> Wanted:
    """Equal for two that mean the same: a model of the catalogue is the one of its hub id."""
    entry = catalogue.find(wanted.model)
    model = wanted.model if entry is None else entry.hub_id
    return Wanted(model, wanted.name, wanted.handler, wanted.pooling)
