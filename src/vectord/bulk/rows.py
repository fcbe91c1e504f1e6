"""Rows of the input, and their vectors: the values that inputs.py, pipeline.py and the outputs exchange."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from vectord.bulk.job import BulkJob
from vectord.schema import Media, Span, Sparse

MAX_ROW_BYTES = 64 * 2**20  # of a line, a field, or a file that is one text; far above any model's limit

FIRST_ROWS, FIRST_BYTES = 4096, 32 * 2**20  # of IN, which determine the columns of a table

# In the limits of texts. A page has a thousand rows and more in its models, and is sent to a server as a PNG.
IMAGE_CHARACTERS, PAGE_CHARACTERS = 8000, 32_000

# All columns: a pyarrow.RecordBatch if the input is a table, else a mapping for each row.
Columns: TypeAlias = Any
Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class InvalidText:
    """A row's text that cannot be embedded, and why."""

    reason: str
    is_null: bool = field(default=False, compare=False)


RowInput: TypeAlias = str | Media | InvalidText


def characters_of(text: RowInput) -> int:
    if isinstance(text, Media):
        return IMAGE_CHARACTERS if text.page is None else PAGE_CHARACTERS
    return len(text) if isinstance(text, str) else 0


@dataclass(frozen=True, slots=True)
class RowLimits:
    """The maximum size of a group of rows (one request, or all in flight). A longer text is a group of its own."""

    rows: int
    characters: int  # of the texts
    size_bytes: int = 8 * 2**20  # of all columns


class RowKey(NamedTuple):
    """Of a row in a database: its id, and the hash that changes with the row and with its vectors."""

    id: Any
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive rows.

    position: how far the input is read when these rows are read, in rows for tables, else in bytes. size_bytes: the
    approximate size of all columns. text_column: the name of the column of the texts. numbers: the index of each row in
    IN, once `divide` has counted them. keys: of rows for a database, once it has looked them up.
    """

    texts: Sequence[RowInput]
    columns: Columns
    position: int
    size_bytes: int
    text_column: str
    numbers: Sequence[int] = ()
    keys: Sequence[RowKey] = ()
    chunks: Sequence[tuple[int, int, int, int]] = ()  # the values of CHUNK_COLUMNS, of rows that are chunks

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def characters(self) -> int:
        return sum(map(characters_of, self.texts))

    def mappings(self) -> list[Mapping[str, Any]]:
        """The columns of each row."""
        return self.columns if isinstance(self.columns, list) else self.columns.to_pylist()

    def slice(self, start: int, stop: int) -> Rows:
        """Some of the rows, with the position of all."""
        kept = slice(start, stop)
        return replace(
            self,
            texts=self.texts[kept],
            columns=self.columns[kept],
            size_bytes=self.size_bytes * (stop - start) // max(1, len(self)),
            numbers=self.numbers[kept],
            keys=self.keys[kept],
            chunks=self.chunks[kept],
        )

    def within(self, limits: RowLimits) -> Iterator[Rows]:
        """The rows in groups, each within the limits of rows and characters."""
        start = characters = 0
        for i, text in enumerate(self.texts):
            more = characters_of(text)
            if i > start and (i - start == limits.rows or characters + more > limits.characters):
                yield self.slice(start, i)
                start, characters = i, 0
            characters += more
        if start < len(self):
            yield self.slice(start, len(self))

    def take(self, places: Sequence[int]) -> Rows:
        """The rows at these places, with the position and size of all."""
        if len(places) == len(self):
            return self
        if not places:  # pyarrow's take would need their type
            return self.slice(0, 0)
        kept = self.columns
        return replace(
            self,
            texts=[self.texts[i] for i in places],
            columns=[kept[i] for i in places] if isinstance(kept, list) else kept.take(places),
            numbers=[self.numbers[i] for i in places] if self.numbers else (),
            keys=[self.keys[i] for i in places] if self.keys else (),
        )


def first_columns(rows: Iterator[Rows]) -> tuple[Any, Iterator[Rows]]:
    """The columns of the first rows, and an iterator of all rows: the pyarrow.Schema if the input is a table, else the
    values of each column by its name."""
    first: list[Rows] = []
    for group in rows:
        first.append(group)
        if not isinstance(group.columns, list):
            return group.columns.schema, chain(first, rows)
        if sum(one.size_bytes for one in first) >= FIRST_BYTES or sum(map(len, first)) >= FIRST_ROWS:
            break
    mappings = [row for group in first for row in group.columns]
    names = dict.fromkeys(chain.from_iterable(mappings))
    return {name: [row.get(name) for row in mappings] for name in names}, chain(first, rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextVectors:
    """The vectors of some texts, in order. The texts in `failures` have zeros or empty arrays."""

    space: str
    dense: Array | None = None  # (n, D); (n, D / 8) for ubinary
    sparse: Sequence[Sparse] | None = None
    colbert: Sequence[Array] | None = None  # (n_i, C) each
    muvera: Array | None = None  # (n, F)
    tokens: int = 0  # read by the model
    cut: int = 0  # number of truncated texts
    failures: Mapping[int, str] = field(default_factory=dict)  # index -> reason

    @property
    def widths(self) -> Mapping[str, int]:
        """The numbers of a vector of each kind, of a token's for colbert; bytes of a ubinary vector; 0 for sparse."""
        matrices = {"dense": self.dense, "colbert": self.colbert[0] if self.colbert else None, "muvera": self.muvera}
        return {"sparse": 0} | {kind: one.shape[1] for kind, one in matrices.items() if one is not None}

    @property
    def size_bytes(self) -> int:
        size = sum(0 if one is None else one.nbytes for one in (self.dense, self.muvera))
        size += sum(one.indices.nbytes + one.values.nbytes for one in self.sparse or ())
        return size + sum(one.nbytes for one in self.colbert or ())


@dataclass(frozen=True, slots=True)
class EmbeddedRows:
    """Rows with the vectors of their texts."""

    rows: Rows
    vectors: TextVectors | None  # None: no row has a valid text
    row_indices: Sequence[int]  # the row of each text in `vectors`
    errors: Mapping[int, str]  # row -> reason


def dense_rows(
    part: Sequence[EmbeddedRows], width: int, dtype: npt.DTypeLike, kind: Literal["dense", "muvera"] = "dense"
) -> Array:
    """The vectors of this kind of a part (rows, width); zeros for rows without one."""
    whole = np.zeros((sum(len(group.rows) for group in part), width), dtype)
    start = 0
    for group in part:
        vectors = None if group.vectors is None else getattr(group.vectors, kind)
        if vectors is not None and group.row_indices:
            whole[start + np.asarray(group.row_indices)] = vectors[: len(group.row_indices)]
        start += len(group.rows)
    return whole


def each_row(part: Sequence[EmbeddedRows], kind: str) -> list[Any]:
    """The vectors of this kind for each row of a part; None for rows without one."""
    found: list[Any] = []
    for group in part:
        vectors_of_rows: list[Any] = [None] * len(group.rows)
        vectors = None if group.vectors is None else getattr(group.vectors, kind)
        for row, vector in zip(group.row_indices, () if vectors is None else vectors, strict=False):
            if row not in group.errors:
                vectors_of_rows[row] = vector
        found += vectors_of_rows
    return found


def chunk_columns(part: Sequence[EmbeddedRows], job: BulkJob) -> dict[str, list[int]]:
    """The columns of --chunk, by their names in OUT."""
    return {
        job.name_of(name): [chunk[i] for group in part for chunk in group.rows.chunks]
        for i, name in enumerate(job.chunk_columns)
    }


def numbers_of(part: Sequence[EmbeddedRows]) -> list[int]:
    return [number for group in part for number in group.rows.numbers]


def errors_of(part: Sequence[EmbeddedRows]) -> list[str | None]:
    return [group.errors.get(row) for group in part for row in range(len(group.rows))]


class TextChunk(NamedTuple):
    """A part of a row's text; the whole of an image, or of a text that is invalid."""

    text: RowInput
    span: Span = Span(0, 0)


def chunk_rows(rows: Rows, chunks: Sequence[Sequence[TextChunk]]) -> Rows:
    """A row for each chunk, with the chunk's text in the column of the texts. chunks: of each row, at least one."""
    places: list[int] = []
    texts: list[RowInput] = []
    numbers: list[tuple[int, int, int, int]] = []
    for place, own in enumerate(chunks):
        for number, (text, span) in enumerate(own):
            places.append(place)
            texts.append(text)
            numbers.append((number, len(own), span.start, span.stop))
    taken = rows.take(places)
    columns = taken.columns
    if isinstance(columns, list):
        columns = [
            {**row, rows.text_column: text} if isinstance(text, str) else row
            for row, text in zip(columns, texts, strict=True)
        ]
    else:
        from vectord.bulk.arrow_input import with_texts  # noqa: PLC0415 - pyarrow, an extra

        columns = with_texts(columns, rows.text_column, [text if isinstance(text, str) else None for text in texts])
    size_bytes = rows.size_bytes * len(texts) // max(1, len(rows))  # the other columns are repeated
    return replace(taken, texts=texts, columns=columns, size_bytes=size_bytes, chunks=numbers)
