"""Each declared setting as a `Setting`: all its names, and how a text or a TOML value becomes its value.

sources.py reads values with it. The help text, `.env.example` and docs/configuration.md iterate over SETTINGS too.
profiles.py adds a product's names, and the settings that count under one profile only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

from vectord.config.declared import SECTIONS, Declaration, ValueReader

PREFIX = "VECTORD_"
TRUE = frozenset({"true", "t", "1", "yes", "y", "on"})
FALSE = frozenset({"false", "f", "0", "no", "n", "off"})
_KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    tuple: "one name or more, separated by , or ;",
}


class BadValue(ValueError):
    """A value does not fit its setting. The message is the expected form, without the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(Declaration):
    """A declaration with its names. `flags` has all options here."""

    section: str
    name: str
    env: tuple[str, ...]  # variables, the one that wins first
    reads: Mapping[str, ValueReader]  # by variable and by option
    switches: frozenset[str] = frozenset()  # options that need no value although the setting is not a boolean
    repeated: frozenset[str] = frozenset()  # options with a value for each model
    lenient: frozenset[str] = frozenset()  # variables whose bad value is logged and skipped
    type: type | Any  # bool, int, float, str, or tuple for a list of str
    optional: bool  # None is a value
    default: Any

    @property
    def bare(self) -> str:
        """Its variable without the prefix, which counts under another product's profile or with --env-compat."""
        return self.name.upper()

    @property
    def expected(self) -> str:
        """The form of a value, for error messages: "a whole number from 0 to 65535"."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.pattern:
            return self.pattern[1]
        kind = _KINDS[self.type]
        if self.limits is None:
            return kind
        low, high = (str(int(limit) if limit == int(limit) else limit) for limit in self.limits)
        return f"{kind} from {low} to {high}"

    def from_text(self, text: str) -> Any:
        """The value for a text from the command line or the environment. Raises BadValue."""
        if not self.verbatim:
            text = text.strip()
        if text.lower() in self.synonyms:
            synonym = self.synonyms[text.lower()]
            return self.default if synonym is None else synonym
        if self.type is tuple:
            return self._listed(re.split("[,;]", text))
        if not text and self.optional:
            return None
        if self.type is bool:
            if text.lower() not in TRUE | FALSE:
                raise BadValue(self.expected)
            return text.lower() in TRUE
        # int() also takes other scripts' digits.
        if not text or (self.type is int and not re.fullmatch(r"[+-]?[0-9_]{1,20}", text)):
            raise BadValue(self.expected)
        try:
            return self._checked(self.type(text))
        except ValueError:
            raise BadValue(self.expected) from None

    def from_toml(self, value: object) -> Any:
        """The value for a TOML value: of the setting's type, or a text as in the environment. Raises BadValue."""
        if isinstance(value, str):
            return self.from_text(value)
        if self.type is tuple and isinstance(value, list) and all(isinstance(item, str) for item in value):
            return self._listed(value)
        if self.type is float and type(value) is int:
            return self._checked(float(value))
        if type(value) is not self.type:
            raise BadValue(self.expected)
        return self._checked(value)

    def _listed(self, items: list[str]) -> tuple[str, ...]:
        kept = tuple(item.strip() for item in items if item.strip())
        is_good = self.pattern is None or all(re.fullmatch(self.pattern[0], item) for item in kept)
        if not is_good or (not kept and self.default):
            raise BadValue(self.expected)
        return kept

    def _checked(self, value: Any) -> Any:
        if self.choices:
            value = value.lower()
        low, high = self.limits or (-math.inf, math.inf)
        is_good = (
            (not self.choices or value in self.choices)
            and (not self.pattern or re.fullmatch(self.pattern[0], value))
            and (self.type not in (int, float) or (math.isfinite(value) and low <= value <= high))
        )
        if not is_good:
            raise BadValue(self.expected)
        return value


def option_name(variable: str, prefix: str = PREFIX) -> str:
    """The option for a variable: --url-prefix for VECTORD_URL_PREFIX."""
    return "--" + variable.removeprefix(prefix).lower().replace("_", "-")


def _read_type(hint: Any) -> tuple[Any, bool, tuple[str, ...]]:
    """(plain type, optional, choices) of a field's annotation."""
    if get_origin(hint) is Literal:
        return str, False, get_args(hint)
    if get_origin(hint) is tuple:
        return tuple, False, ()
    options = [option for option in get_args(hint) if option is not type(None)]
    if options:  # X | None
        plain, _, choices = _read_type(options[0])
        return plain, True, choices
    return hint, False, ()


def make_setting(declared: Declaration, **place: Any) -> Setting:
    """place: the section, name, type, optional and default."""
    env = (PREFIX + place["name"].upper(), *declared.variables)
    readers = {variable: read for variable, read in declared.variables.items() if read is not None}
    derived = {
        "env": env,
        "flags": tuple(dict.fromkeys((*map(option_name, env), *declared.flags))),
        "reads": readers | {option_name(variable): read for variable, read in readers.items()},
    }
    own = {known.name: getattr(declared, known.name) for known in fields(Declaration)}
    return Setting(**(own | derived | place))


def _declared() -> Iterator[Setting]:
    for section, owner in SECTIONS.items():
        hints = get_type_hints(owner)
        for field in fields(owner):
            declared = field.metadata.get("declaration")
            if declared is None:
                continue
            plain, optional, literals = _read_type(hints[field.name])
            yield make_setting(
                replace(declared, choices=declared.choices or literals),
                section=section,
                name=field.name,
                type=plain,
                optional=optional,
                default=field.default,
            )


_ALL = tuple(_declared())
SETTINGS: tuple[Setting, ...] = tuple(setting for setting in _ALL if not setting.of_profiles)
OF_PROFILES: Mapping[str, Setting] = {setting.name: setting for setting in _ALL if setting.of_profiles}
SECTION_TITLES: Mapping[str, str] = {section: (owner.__doc__ or "").rstrip(".") for section, owner in SECTIONS.items()}
