"""Each field of Config as a Setting: its names everywhere, and how a text or a TOML value becomes its value.

Between declared.py (what there is) and sources.py (where values come from). The help text, `.env.example` and
docs/configuration.md walk SETTINGS too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from vectord.config.declared import SECTIONS, Config, Reader
from vectord.config.readers import FALSE, TRUE

PREFIX = "VECTORD_"


class BadValue(ValueError):
    """A value does not fit its setting. The text says what was expected, and never the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    section: str
    name: str
    type: type | Any  # bool, int, float, str, or tuple for a list of str
    optional: bool  # whether None ("not said") is a value
    default: Any
    meaning: str
    env: tuple[str, ...]  # every environment name, the one that wins first
    flags: tuple[str, ...]  # every option, that of the setting's own name first
    choices: tuple[str, ...]
    at_least: float | None
    at_most: float | None
    synonyms: Mapping[str, str | None]
    pattern: str | None
    reads: Mapping[str, Reader]  # by environment name, and by option
    switches: tuple[str, ...]
    lenient: tuple[str, ...]
    verbatim: bool
    secret: bool

    @property
    def expected(self) -> str:
        """What a value must be, for error messages: "a whole number from 0 to 65535"."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.pattern:
            return self.meaning[0].lower() + self.meaning[1:].rstrip(".")
        kind = _EXPECTED[self.type]
        if self.at_least is None:
            return kind
        if self.at_most is None:
            return f"{kind} of at least {self.at_least:g}"
        return f"{kind} from {_plain(self.at_least)} to {_plain(self.at_most)}"

    def from_text(self, text: str) -> Any:
        """The value that `text` means on the command line or in the environment. Raises BadValue."""
        if not self.verbatim:
            text = text.strip()
        if text.lower() in self.synonyms:
            synonym = self.synonyms[text.lower()]
            return self.default if synonym is None else synonym
        if self.type is tuple:
            return self._listed(re.split("[,;]", text))
        if not text:
            return self._nothing()
        return self._checked(_FROM_TEXT[self.type](text, self.expected))

    def from_toml(self, value: object) -> Any:
        """The value that a TOML value means: of the field's own type, or a text as in the environment."""
        if isinstance(value, str):
            return self.from_text(value)
        if self.type is tuple and isinstance(value, list) and all(isinstance(item, str) for item in value):
            return self._listed(value)
        if self.type is float and type(value) is int:
            return self._checked(float(value))
        if type(value) is not self.type:
            raise BadValue(self.expected)
        return self._checked(value)

    def _nothing(self) -> None:
        if not self.optional:
            raise BadValue(self.expected)

    def _listed(self, items: list[str]) -> tuple[str, ...]:
        kept = tuple(item.strip() for item in items if item.strip())
        if not kept and self.default:
            raise BadValue(self.expected)
        return kept

    def _checked(self, value: Any) -> Any:
        if self.choices:
            value = value.lower()
            if value not in self.choices:
                raise BadValue(self.expected)
        if self.pattern and not re.fullmatch(self.pattern, value):
            raise BadValue(self.expected)
        if self.at_least is not None and not self.at_least <= value <= (self.at_most or math.inf):
            raise BadValue(self.expected)
        return value


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)


_EXPECTED = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    tuple: "one name or more, separated by , or ;",
}


def _bool(text: str, expected: str) -> bool:
    if text.lower() in TRUE:
        return True
    if text.lower() in FALSE:
        return False
    raise BadValue(expected)


def _int(text: str, expected: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9_]{1,20}", text):
        raise BadValue(expected)
    try:
        return int(text)
    except ValueError:
        raise BadValue(expected) from None


def _float(text: str, expected: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise BadValue(expected) from None
    if not math.isfinite(value):
        raise BadValue(expected)
    return value


def _str(text: str, expected: str) -> str:
    return text


_FROM_TEXT: Mapping[Any, Callable[[str, str], Any]] = {bool: _bool, int: _int, float: _float, str: _str}


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


def option(env: str) -> str:
    """The option of an environment name: --url-prefix of INFINITY_URL_PREFIX, as infinity's own is."""
    return "--" + env.removeprefix(PREFIX).removeprefix("INFINITY_").lower().replace("_", "-")


def _settings() -> tuple[Setting, ...]:
    found = []
    for section in SECTIONS:
        owner = type(getattr(Config(), section.name))
        hints = get_type_hints(owner)
        for field in fields(owner):
            plain, optional, literals = _read_type(hints[field.name])
            own_env = field.name.upper()
            named = dict(field.metadata)
            env = (PREFIX + own_env, own_env, *named.pop("env"))
            flags, reads = named.pop("flags"), named.pop("reads")
            read_options = {option(name): reader for name, reader in reads.items() if option(name) not in flags}
            found.append(
                Setting(
                    section=section.name,
                    name=field.name,
                    type=plain,
                    optional=optional,
                    default=field.default,
                    meaning=named.pop("meaning"),
                    env=env,
                    flags=tuple(dict.fromkeys((*map(option, env), *flags))),
                    choices=named.pop("choices") or literals,
                    reads=reads | read_options,
                    **named,
                )
            )
    return tuple(found)


SETTINGS: tuple[Setting, ...] = _settings()
SECTION_TITLES: Mapping[str, str] = {
    section.name: (type(getattr(Config(), section.name)).__doc__ or "").rstrip(".") for section in SECTIONS
}
