"""The texts that int8 is fitted to, as tokens, and the folder for the result. engine/models makes it for backends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vectord.schema import Int32

HELD_OUT = 4  # every n-th text is held out of the fit, to measure the loss


@dataclass(frozen=True, slots=True)
class CalibrationTexts:
    texts: tuple[str, ...]
    source: str  # "built-in" or "own"
    digest: str  # 16 hex digits


@dataclass(frozen=True, slots=True)
class Sample:
    ids: tuple[Int32, ...]  # (L,) of each text, specials included
    source: str
    digest: str
    folder: Path | None  # for stored recipes; None: nothing is stored

    @property
    def fitted(self) -> Sequence[Int32]:
        return [ids for i, ids in enumerate(self.ids) if i % HELD_OUT]

    @property
    def held_out(self) -> Sequence[Int32]:
        return self.ids[::HELD_OUT]
