"""Printing for commands: text and JSON, and tables by rich."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

MAX_WIDTH = 4000  # of a table's line


def print_text(text: str) -> int:
    """Exit code 0."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()
    return 0


def print_json(value: Any) -> int:
    """Exit code 0. value: may contain dataclasses and structs."""
    return print_text(json.dumps(value, indent=2, default=msgspec.to_builtins))


def print_table(rows: Iterable[Sequence[Any]], headings: Sequence[str] | None = None, **table: Any) -> int:
    """Exit code 0. A cell is a text or a rich.text.Text. A heading that starts with > aligns its column right."""
    from rich.table import Table  # noqa: PLC0415

    rows = list(rows)
    shown = Table(box=None, pad_edge=False, show_header=headings is not None, title_justify="left", **table)
    for place, heading in enumerate(headings or [""] * max(map(len, rows), default=0)):
        right = heading.startswith(">")
        is_name = headings is None and place == 0  # which can be copied if it is not folded
        shown.add_column(
            heading.removeprefix(">"), justify="right" if right else "left", overflow="fold", no_wrap=right or is_name
        )
    for row in rows:
        shown.add_row(*row)
    out = console()
    if headings is not None:  # a terminal wraps long lines; a table whose cells are folded is not legible
        out.width = max(out.width, out.measure(shown, options=out.options.update(width=MAX_WIDTH)).maximum)
    with out.capture() as captured:
        out.print(shown)
    # Spaces at the end of a line, also before the code that ends a style, would wrap on a terminal.
    return print_text(re.sub(r"[ ]+((?:\x1b\[0m)?)$", r"\1", captured.get(), flags=re.MULTILINE))


def console(*, stderr: bool = False) -> Any:
    """rich's console."""
    from rich.console import Console  # noqa: PLC0415

    # A pipe has no width: long lines stay whole for scripts.
    is_terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(stderr=stderr, highlight=False, markup=False, width=None if is_terminal else MAX_WIDTH)


def printable(text: str) -> str:
    """A server's text without control characters, which could move the cursor."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)
