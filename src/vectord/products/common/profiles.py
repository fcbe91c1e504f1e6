"""The profile of each product, by name: the TOML file that `--profile NAME` reads (vectord.config.sources)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

_PRODUCTS = Path(__file__).parents[1]


@cache  # the command line and the loader of the settings both read it
def profiles() -> Mapping[str, Path]:
    """The profiles by name, in alphabetical order. The name is the folder's, unless the file has a `name`."""
    found = {}
    for path in _PRODUCTS.glob("*/profile.toml"):
        tables = tomllib.loads(path.read_text("utf-8"))
        found[tables.get("name", path.parent.name.replace("_", "-"))] = path
    return dict(sorted(found.items()))
