"""TOML files as Layers: the operator's config file, and the profile in each product's folder.

A profile has, before the sections of a config file:

    name          the profile's name, if it is not the folder's
    description   one line for docs/configuration.md and `--help`
    dialects      the dialects that answer first on shared paths; all others follow in their usual order
    required      settings that the operator must make, as the product itself requires
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vectord.config.declared import DIALECTS, SECTIONS
from vectord.config.layer import Layer, Origin, Source, nearest, shown
from vectord.config.settings import SETTINGS
from vectord.errors import ConfigError

PRODUCTS = Path(__file__).parents[1] / "products"  # data files of products; none of their code is imported
CONFIG_FILE = "vectord.toml"

# Settings of a profile that name a file or folder; each counts only if that exists in the working folder.
PLACES = ("model_catalogue", "hub_cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    name: str
    description: str
    layer: Layer
    required: tuple[str, ...] = ()  # names of settings


def profiles() -> Mapping[str, Path]:
    """The profiles by name, in alphabetical order: one TOML file each."""
    found = {}
    for path in PRODUCTS.glob("*/profile.toml"):
        tables = tomllib.loads(path.read_text("utf-8"))
        found[tables.get("name", path.parent.name.replace("_", "-"))] = path
    return dict(sorted(found.items()))


def read_profile(name: str, cwd: Path) -> Profile:
    """The profile of that name, with - or _ between its words. Raises ConfigError, which lists them all."""
    known = name.replace("_", "-")
    paths = profiles()
    if known not in paths:
        raise ConfigError(f"unknown profile {shown(name)}; there are: {', '.join(paths)}")
    tables = _read_toml(paths[known], f"profile {known}")
    tables.pop("name", None)
    description, required = tables.pop("description"), tuple(tables.pop("required", ()))
    first = tables.pop("dialects", None)
    layer = _read_tables(tables, "profile", f"profile {known}")
    if first is not None:
        others = [dialect for dialect in DIALECTS if dialect not in first]
        layer["dialects"] = ([*first, *others], Origin("profile", "dialects"))
    for place in PLACES:
        if place in layer and not (cwd / str(layer[place][0])).exists():
            del layer[place]
    return Profile(name=known, description=description, layer=layer, required=required)


def read_config_file(cwd: Path, named: str | None) -> tuple[Layer, str | None]:
    """(what the config file says, the profile it names)."""
    path = cwd / (named or CONFIG_FILE)
    if not path.is_file():
        if named:
            raise ConfigError(f"config file {shown(named)}: no such file")
        return {}, None
    tables = _read_toml(path, path.name)
    profile = tables.pop("profile", None)
    if profile is not None and not isinstance(profile, str):
        raise ConfigError(f"profile in {path.name}: expected one of {', '.join(profiles())}")
    return _read_tables(tables, "config file", path.name), profile


def _read_toml(path: Path, title: str) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except tomllib.TOMLDecodeError as problem:
        raise ConfigError(f"{title} is not TOML: {problem}") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"{title} cannot be read: {type(problem).__name__}") from problem


def _read_tables(tables: Mapping[str, object], source: Source, title: str) -> Layer:
    layer: Layer = {}
    keys = {(setting.section, setting.name) for setting in SETTINGS}
    for section, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{section} in {title}: expected a section, one of {_section_names()}{_place(section)}")
        if section not in {known.name for known in SECTIONS}:
            raise ConfigError(f"unknown section [{section}] in {title}; there are: {_section_names()}")
        for key, value in table.items():
            if (section, key) not in keys:
                raise ConfigError(f"unknown key {key} in [{section}] of {title}{_place(key)}")
            layer[key] = (value, Origin(source, f"[{section}] {key}"))
    return layer


def _section_names() -> str:
    return ", ".join(section.name for section in SECTIONS)


def _place(key: str) -> str:
    """Where a key belongs, or the one it was meant to be."""
    sections = {setting.name: setting.section for setting in SETTINGS}
    if key in sections:
        return f"; it belongs in [{sections[key]}]"
    return nearest(key, sections)
