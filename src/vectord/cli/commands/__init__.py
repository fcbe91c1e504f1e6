"""One module a command of `vectord`: the folder is the registry.

What a command needs is imported when it runs: the server must answer one second after exec, help at once.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from importlib import import_module
from typing import Protocol, cast


class Command(Protocol):
    """A module. Importing it costs nothing: `vectord --help` imports them all."""

    USAGE: str  # what comes after `vectord`
    SUMMARY: str  # what it does, in half a line

    def help(self) -> str:
        """What `vectord NAME --help` prints."""
        ...

    def run(self, words: Sequence[str]) -> int:
        """The exit code. words: the command line after the command's name. Raises StartError."""
        ...


def command_names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load_command(name: str) -> Command:
    """name: one of command_names()."""
    return cast(Command, import_module(f"{__name__}.{name}"))
