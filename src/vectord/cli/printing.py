"""What a command prints: text, and tables by rich."""

from __future__ import annotations

import sys
from typing import Any


def print_text(text: str) -> int:
    """Exit code 0."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()
    return 0


def print_table(table: Any) -> int:
    """Exit code 0. table: anything that rich prints."""
    console().print(table)
    return 0


def console() -> Any:
    """rich's, on standard output."""
    from rich.console import Console  # noqa: PLC0415

    # A pipe has no width: long paths stay whole for whoever reads the lines.
    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 240)


def printable(text: str) -> str:
    """A stranger's words, which move no cursor."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)
