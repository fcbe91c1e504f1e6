"""Rows of the input on their way to the model, and what it made of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vectord.schema import Sparse

MAX_ROW_BYTES = 64 * 2**20  # of a line, a field or a file that is one text: what a model reads of it is far less

# The row's other columns: a pyarrow.RecordBatch where the input is a table, else a mapping a row.
Columns: TypeAlias = Any
Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class NoText:
    """In place of a text that is none. why: what follows "row 5: "."""

    why: str


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows in the order of the input. position: how far the input is read, in rows of tables, else in bytes;
    size_bytes: of all columns, about."""

    texts: Sequence[str | NoText]
    columns: Columns
    position: int
    size_bytes: int

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def characters(self) -> int:
        return sum(len(text) for text in self.texts if isinstance(text, str))

    def cut(self, start: int, stop: int) -> Rows:
        """texts[start:stop] with their columns; of a pyarrow.RecordBatch a slice is another one."""
        return Rows(self.texts[start:stop], self.columns[start:stop], self.position, self.size_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the model made of some texts, in order. Those in `failures` have zeros or nothing for vectors."""

    space: str
    dense: Array | None = None  # (n, D); of ubinary (n, D / 8)
    sparse: Sequence[Sparse] | None = None
    colbert: Sequence[Array] | None = None  # (n_i, C) each
    tokens: int = 0  # that were read
    cut: int = 0  # texts that were not read to their end
    failures: Mapping[int, str] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Of the vectors."""
        size = 0 if self.dense is None else self.dense.nbytes
        size += sum(one.indices.nbytes + one.values.nbytes for one in self.sparse or ())
        return size + sum(one.nbytes for one in self.colbert or ())


@dataclass(frozen=True, slots=True)
class Embedded:
    """Rows with their answer. answer: of the rows without an entry in `errors` that were asked, by their places."""

    rows: Rows
    answer: Answer | None  # None: none of these rows has a text
    places: Sequence[int]  # the row of each text in the answer
    errors: Mapping[int, str]  # by row

    def until(self, stop: int) -> Embedded:
        """The rows before `stop`; counts of tokens stay those of all."""
        errors = {row: why for row, why in self.errors.items() if row < stop}
        return Embedded(self.rows.cut(0, stop), self.answer, [row for row in self.places if row < stop], errors)


def digest_of(texts: Iterable[str | NoText]) -> str:
    """Of the texts with their lengths: two rows are never taken for one."""
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        data = text.encode() if isinstance(text, str) else None
        digest.update((2**64 - 1 if data is None else len(data)).to_bytes(8, "little"))
        digest.update(data or b"")
    return digest.hexdigest()


def dense_rows(part: Sequence[Embedded], width: int, dtype: npt.DTypeLike) -> Array:
    """(rows, width) of all of a part, zeros where there is none."""
    whole = np.zeros((sum(len(one.rows) for one in part), width), dtype)
    start = 0
    for one in part:
        if one.answer is not None and one.answer.dense is not None and one.places:
            whole[start + np.asarray(one.places)] = one.answer.dense[: len(one.places)]
        start += len(one.rows)
    return whole


def each_row(part: Sequence[Embedded], kind: str) -> list[Any]:
    """What `kind` of Answer holds for each row of a part, None where there is none."""
    found: list[Any] = []
    for one in part:
        own: list[Any] = [None] * len(one.rows)
        vectors = None if one.answer is None else getattr(one.answer, kind)
        for place, vector in zip(one.places, vectors or (), strict=False):
            if place not in one.errors:
                own[place] = vector
        found += own
    return found


def errors_of(part: Sequence[Embedded]) -> list[str | None]:
    return [one.errors.get(row) for one in part for row in range(len(one.rows))]
