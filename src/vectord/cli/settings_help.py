"""Every setting as `vectord serve --help` prints it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from vectord.config.settings import SECTION_TITLES, SETTINGS, Setting, option

_WIDTH = 100
_METAVAR = {bool: "", int: "N", float: "X", str: "TEXT", tuple: "LIST"}


def sections() -> Iterator[str]:
    for section, title in SECTION_TITLES.items():
        yield f"\n{title}"
        yield from (_setting(setting) for setting in SETTINGS if setting.section == section)


def _setting(setting: Setting) -> str:
    names = ", ".join(setting.env[1:])  # the prefixed form goes without saying
    return entry(f"{_flags(setting)}  [{names}{_default(setting)}]", setting.meaning)


def _flags(setting: Setting) -> str:
    """Its own option and those that no environment name says, short ones first."""
    others = {option(name) for name in setting.env[2:]} - {setting.flags[0]}
    own = [flag for flag in setting.flags if flag not in others]
    metavar = "|".join(setting.choices) or _METAVAR[setting.type]
    return f"{', '.join(sorted(own, key=lambda flag: flag.startswith('--')))} {metavar}".rstrip()


def _default(setting: Setting) -> str:
    value = setting.default
    if value is None or value == ():
        return ""
    if isinstance(value, tuple):
        return "; default: " + ", ".join(value)
    return f"; default: {str(value).lower() if isinstance(value, bool) else value}"


def entry(head: str, meaning: str) -> str:
    lines = textwrap.wrap(head, _WIDTH, initial_indent=" " * 2, subsequent_indent=" " * 10)
    lines += textwrap.wrap(meaning, _WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return "\n".join(lines)
