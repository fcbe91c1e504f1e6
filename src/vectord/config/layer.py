"""What one source says of the settings, not yet read. Each source's own file makes a Layer, sources.py merges them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

Source: TypeAlias = Literal["command line", "environment", ".env", "config file", "profile", "default"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where one value came from."""

    source: Source
    name: str = ""  # what it is called there: --port, PORT, [server] port

    def __str__(self) -> str:
        return f"{self.name} ({self.source})" if self.name else self.source


# Setting name -> (a text, a list of texts or a TOML value, where it stands).
Layer: TypeAlias = dict[str, tuple[object, Origin]]


def nearest(word: str, known: Iterable[str]) -> str:
    """A half sentence that suggests the known name most like `word`, or nothing."""
    import difflib  # noqa: PLC0415 - only on the way out

    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def shown(raw: object) -> str:
    """The operator's own value, on one line and no longer than one."""
    text = repr(raw)
    return text if len(text) <= 80 else text[:77] + "..."
