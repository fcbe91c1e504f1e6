"""The folder is the registry: a module of this folder that holds a `DIALECT` is one. Called by compose at start."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from functools import cache
from importlib import import_module

from vectord import products as dialects
from vectord.errors import ConfigError
from vectord.products.common.dialect import Dialect


def load_dialects(names: Sequence[str]) -> list[Dialect]:
    """The dialects of these names, in this order. Raises ConfigError, which lists the folder, for any other name."""
    modules = {module.name for module in pkgutil.iter_modules(dialects.__path__)}
    return [_load(name, modules) for name in names]


@cache
def all_dialects() -> Sequence[Dialect]:
    """Every dialect, by name. Imports every product."""
    return load_dialects(dialect_names())


def dialect_names() -> list[str]:
    """Every dialect there is, by name. Imports the whole folder."""
    modules = [module.name for module in pkgutil.iter_modules(dialects.__path__)]
    return sorted(name for name in modules if _dialect_of(name) is not None)


def _load(name: str, modules: set[str]) -> Dialect:
    dialect = _dialect_of(name) if name in modules else None
    if dialect is None:
        raise ConfigError(f"There is no dialect {name!r}; there are: {', '.join(dialect_names())}.", field="dialects")
    return dialect


def _dialect_of(module: str) -> Dialect | None:
    found = getattr(import_module(f"{dialects.__name__}.{module}"), "DIALECT", None)
    return found if isinstance(found, Dialect) else None
