"""Rows of the input, and their vectors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vectord.schema import Sparse

MAX_ROW_BYTES = 64 * 2**20  # of a line, a field, or a file that is one text; models read far less

Columns: TypeAlias = (
    Any  # the other columns: a pyarrow.RecordBatch if the input is a table, else a mapping for each row
)
Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class InvalidText:
    """Stands for a text that cannot be read."""

    reason: str


@dataclass(frozen=True, slots=True)
class RowLimits:
    """The most rows that are grouped into one request, or in flight together. A longer text is a group of its own."""

    rows: int
    characters: int  # of the texts
    size_bytes: int = 8 * 2**20  # of all columns


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive rows. position: how much input is read after them, in rows of tables, else in bytes. size_bytes: of
    all columns, approximately."""

    texts: Sequence[str | InvalidText]
    columns: Columns
    position: int
    size_bytes: int

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def characters(self) -> int:
        return sum(len(text) for text in self.texts if isinstance(text, str))

    def slice(self, start: int, stop: int) -> Rows:
        return Rows(self.texts[start:stop], self.columns[start:stop], self.position, self.size_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextVectors:
    """The vectors of some texts, in order. The texts in `failures` have zeros or empty arrays."""

    space: str
    dense: Array | None = None  # (n, D); (n, D / 8) for ubinary
    sparse: Sequence[Sparse] | None = None
    colbert: Sequence[Array] | None = None  # (n_i, C) each
    tokens: int = 0  # read by the model
    cut: int = 0  # truncated texts
    failures: Mapping[int, str] = field(default_factory=dict)  # index -> reason

    @property
    def size_bytes(self) -> int:
        size = 0 if self.dense is None else self.dense.nbytes
        size += sum(one.indices.nbytes + one.values.nbytes for one in self.sparse or ())
        return size + sum(one.nbytes for one in self.colbert or ())


@dataclass(frozen=True, slots=True)
class EmbeddedRows:
    """Rows with the vectors of their texts."""

    rows: Rows
    vectors: TextVectors | None  # None: no row has a valid text
    places: Sequence[int]  # for each text of `vectors`, its row
    errors: Mapping[int, str]  # row -> reason

    def until(self, stop: int) -> EmbeddedRows:
        """The rows before `stop`, with the token counts of all rows."""
        errors = {row: why for row, why in self.errors.items() if row < stop}
        return EmbeddedRows(self.rows.slice(0, stop), self.vectors, [row for row in self.places if row < stop], errors)


def digest_of(texts: Iterable[str | InvalidText]) -> str:
    """A digest that also covers where each text ends, and which texts are invalid."""
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        data = text.encode() if isinstance(text, str) else None
        digest.update((2**64 - 1 if data is None else len(data)).to_bytes(8, "little"))
        digest.update(data or b"")
    return digest.hexdigest()


def dense_rows(part: Sequence[EmbeddedRows], width: int, dtype: npt.DTypeLike) -> Array:
    """The dense vectors of a part (rows, width); zeros for rows without one."""
    whole = np.zeros((sum(len(one.rows) for one in part), width), dtype)
    start = 0
    for one in part:
        if one.vectors is not None and one.vectors.dense is not None and one.places:
            whole[start + np.asarray(one.places)] = one.vectors.dense[: len(one.places)]
        start += len(one.rows)
    return whole


def each_row(part: Sequence[EmbeddedRows], kind: str) -> list[Any]:
    """The vectors of this kind for each row of a part; None for rows without one."""
    found: list[Any] = []
    for one in part:
        own: list[Any] = [None] * len(one.rows)
        vectors = None if one.vectors is None else getattr(one.vectors, kind)
        for place, vector in zip(one.places, vectors or (), strict=False):
            if place not in one.errors:
                own[place] = vector
        found += own
    return found


def errors_of(part: Sequence[EmbeddedRows]) -> list[str | None]:
    return [one.errors.get(row) for one in part for row in range(len(one.rows))]
