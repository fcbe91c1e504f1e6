"""What every module of this folder that is a command has, and how cli.py finds them."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from importlib import import_module
from typing import Protocol, cast

from vectord import commands

EXIT_FAILED = 1
EXIT_BAD_START = 2
NO_COMMANDS = frozenset({"base", "parsing", "printing", "settings_help"})  # what lies in the folder beside them


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
    return sorted({module.name for module in pkgutil.iter_modules(commands.__path__)} - NO_COMMANDS)


def load_command(name: str) -> Command:
    """name: one of command_names()."""
    return cast(Command, import_module(f"{commands.__name__}.{name}"))
