"""The text models of the year in MTEB's registry, and whether they load: docs/mteb.csv.

`python -m scripts.mteb_models` decides and writes the file; docs/generate.py renders from it.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).resolve().parent
LIMIT = 8_000_000_000  # parameters of a model that counts
# As mteb.models.model_meta.OPEN_LICENSES, of those that occur.
PERMISSIVE = frozenset({"apache-2.0", "cc-by-4.0", "mit", "openmdw-1.1"})
UNKNOWN = "code of its own, which no public source describes"


class Row(NamedTuple):
    """A model of the registry. The fields are the columns of the CSV file."""

    model: str
    released: str
    parameters: str
    licence: str
    architecture: str
    settings: str
    source: str  # of the settings: "base model", or "card or code"
    loads: str  # yes, no, or transformers: with that extra
    reason: str  # why not

    @property
    def counts(self) -> bool:
        """Whether the measure includes the model: its licence is permissive, and it is not too large."""
        return self.licence in PERMISSIVE and int(self.parameters) <= LIMIT


def package() -> Mapping[str, str]:
    """`mteb`: its version; `since`: the first day of release."""
    found: Mapping[str, str] = json.loads((DOCS / "mteb.json").read_text("utf-8"))["package"]
    return found


def stored() -> tuple[Row, ...]:
    """Return the rows of docs/mteb.csv."""
    lines = csv.reader(StringIO((DOCS / "mteb.csv").read_text("utf-8")))
    next(lines)
    return tuple(Row(*line) for line in lines)


def share(rows: Iterable[Row]) -> tuple[int, int]:
    """How many of the models that count load, and how many there are."""
    counted = [row for row in rows if row.counts]
    return sum(row.loads != "no" for row in counted), len(counted)


def summary(rows: Sequence[Row]) -> list[tuple[str, str, str, str]]:
    """Architecture, settings, the number of models that count, and whether they load, and why not.

    rows: in the file's order.
    """
    lines = []
    for (architecture, settings), group in groupby(
        (row for row in rows if row.counts), key=lambda row: (row.architecture, row.settings)
    ):
        models = list(group)
        loads, reason = models[0].loads, "" if settings == UNKNOWN else models[0].reason
        lines.append((architecture, settings, str(len(models)), f"no: {reason}" if reason else loads))
    return lines
