"""The profile of each product, by name: what `--profile NAME` sets, and the product's names of settings.

A profile.toml has the keys of `vectord.config.profiles.Profile`, in the forms that people write:

    dialects       the products that answer first on a shared path; all others follow in their usual order
    [names]        SETTING = "VARIABLE VARIABLE:READER", the one that wins first; READER is a function of variables.py,
                   or + for values that are added to those of the profile
    [settings.X]   a setting of the product itself: `Profile.own`
    [instead]      REPLACEMENT = "OPTION OPTION"
    [model] and the other sections of a config file: `Profile.values`
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from vectord.products import ORDER
from vectord.products.common import variables

_PRODUCTS = Path(__file__).parents[1]
_SECTIONS = ("model", "device", "engine", "server", "telemetry")


@cache  # the command line and the loader of the settings both read it
def profiles() -> Mapping[str, Mapping[str, Any]]:
    """The profiles by name, in alphabetical order. The name is the folder's, unless the file has a `name`."""
    found = {}
    for path in _PRODUCTS.glob("*/profile.toml"):
        tables = tomllib.loads(path.read_text("utf-8"))
        name = tables.pop("name", path.parent.name.replace("_", "-"))
        values = {section: tables.pop(section) for section in _SECTIONS if section in tables}
        if first := tables.pop("dialects", None):
            order = [*first, *(product for product in ORDER if product not in first)]
            values["server"] = {"imitates": first[0], "dialects": order, **values.get("server", {})}
        names = {setting: _names(setting, text, values) for setting, text in tables.pop("names", {}).items()}
        instead = {option: text for text, options in tables.pop("instead", {}).items() for option in options.split()}
        own = tables.pop("settings", {})
        found[name] = {"values": values, "names": names, "own": own, "instead": instead, **tables}
    return dict(sorted(found.items()))


def _names(setting: str, text: str, values: Mapping[str, Mapping[str, Any]]) -> Mapping[str, object]:
    """The variables with their readers, or None."""
    return {
        variable: partial(_added, setting, values) if reader == "+" else getattr(variables, reader) if reader else None
        for variable, _, reader in (word.partition(":") for word in text.split())
    }


def _added(setting: str, values: Mapping[str, Mapping[str, Any]], text: str) -> str:
    """Values that are added to those of the profile."""
    (own,) = (section[setting] for section in values.values() if setting in section)
    return ",".join([*own, variables.unquoted(text)])
