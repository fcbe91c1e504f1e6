"""How commands with options of their own read their words: argparse, with our errors and our layout of help."""

from __future__ import annotations

import math
import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from vectord.errors import ConfigError

_WIDTH = 100


class RaisingParser(ArgumentParser):
    """Raises ConfigError where argparse would end the process."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self.prog}: {message}; try {self.prog} --help")


class Parser(RaisingParser):
    """Of `vectord NAME`."""

    def __init__(self, name: str, *, usage: str, description: str, epilog: str) -> None:
        super().__init__(
            prog=f"vectord {name}",
            usage=usage,
            description=description,
            epilog=epilog,
            formatter_class=partial(RawDescriptionHelpFormatter, width=_WIDTH, max_help_position=10),
            allow_abbrev=False,
            add_help=False,
        )

    def add_common(self) -> None:
        """What every command has."""
        self.add_argument("--json", action="store_true", help="print the result as JSON")
        self.add_argument("-h", "--help", action="store_true", help="print this text")


def token_of(options: Namespace) -> str | None:
    """Of the server that is asked: --token, else what the environment has."""
    return options.token or os.environ.get("API_TOKEN") or os.environ.get("VECTORD_API_KEY") or None


def whole(least: int, most: int) -> Callable[[str], int]:
    """A reader of whole numbers from `least` to `most`."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise ArgumentTypeError(f"expected a whole number from {least} to {most}, got {text[:40]!r}")
        return number

    return read


def seconds(most: float, least: float = 0.0) -> Callable[[str], float]:
    """A reader of numbers from `least` to `most`."""

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = -math.inf
        if not least <= number <= most:
            raise ArgumentTypeError(f"expected a number from {least:g} to {most:g}, got {text[:40]!r}")
        return number

    return read
