"""Rows of the input, and their vectors: the values that inputs.py, pipeline.py and the outputs exchange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vectord.schema import Sparse

MAX_ROW_BYTES = 64 * 2**20  # of a line, a field, or a file that is one text; far above any model's limit

# The other columns: a pyarrow.RecordBatch if the input is a table, else a mapping for each row.
Columns: TypeAlias = Any
Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class InvalidText:
    """A row's text that cannot be embedded, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class RowLimits:
    """The maximum size of a group of rows (one request, or all in flight). A longer text is a group of its own."""

    rows: int
    characters: int  # of the texts
    size_bytes: int = 8 * 2**20  # of all columns


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive rows.

    position: how far the input is read when these rows are read, in rows for tables, else in bytes. size_bytes: the
    approximate size of all columns.
    """

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
        """Some of the rows, with the position and size of all."""
        return Rows(self.texts[start:stop], self.columns[start:stop], self.position, self.size_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextVectors:
    """The vectors of some texts, in order. The texts in `failures` have zeros or empty arrays."""

    space: str
    dense: Array | None = None  # (n, D); (n, D / 8) for ubinary
    sparse: Sequence[Sparse] | None = None
    colbert: Sequence[Array] | None = None  # (n_i, C) each
    tokens: int = 0  # read by the model
    cut: int = 0  # number of truncated texts
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
    row_indices: Sequence[int]  # the row of each text in `vectors`
    errors: Mapping[int, str]  # row -> reason


def dense_rows(part: Sequence[EmbeddedRows], width: int, dtype: npt.DTypeLike) -> Array:
    """The dense vectors of a part (rows, width); zeros for rows without one."""
    whole = np.zeros((sum(len(group.rows) for group in part), width), dtype)
    start = 0
    for group in part:
        if group.vectors is not None and group.vectors.dense is not None and group.row_indices:
            whole[start + np.asarray(group.row_indices)] = group.vectors.dense[: len(group.row_indices)]
        start += len(group.rows)
    return whole


def each_row(part: Sequence[EmbeddedRows], kind: str) -> list[Any]:
    """The vectors of this kind for each row of a part; None for rows without one."""
    found: list[Any] = []
    for group in part:
        vectors_of_rows: list[Any] = [None] * len(group.rows)
        vectors = None if group.vectors is None else getattr(group.vectors, kind)
        for row, vector in zip(group.row_indices, vectors or (), strict=False):
            if row not in group.errors:
                vectors_of_rows[row] = vector
        found += vectors_of_rows
    return found


def errors_of(part: Sequence[EmbeddedRows]) -> list[str | None]:
    return [group.errors.get(row) for group in part for row in range(len(group.rows))]
