"""What databases have in common: a row's id, and the fingerprint by which a later run skips the rows that are stored.

Rows are upserted by their id: the column `id`, or the one of --id-column; without both, a hash of the row. The
fingerprint is a hash of the row's columns, the vector space and the options, so a changed row is embedded again. With
--chunk, a row has an entry for each chunk, with the row's id and fingerprint and the chunk's number; entries that the
row no longer has are deleted.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from mmap import mmap
from threading import Lock
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit
from uuid import UUID

import msgspec

from vectord.bulk.embedder import ModelFacts
from vectord.bulk.job import CHUNK_COLUMNS, ERROR, FINGERPRINT, BulkFailed, BulkJob, Manifest, RetryLater
from vectord.bulk.outputs import BulkOutput
from vectord.bulk.rows import (
    EmbeddedRows,
    RowKey,
    Rows,
    chunk_columns,
    each_row,
    errors_of,
    first_columns,
    numbers_of,
)
from vectord.errors import ConfigError
from vectord.schema import COLBERT_ROWS, Media

T = TypeVar("T")

ID = "id"
OPTIONS: tuple[str, ...] = ("column", "prefix", "kind", "prompt", "prompt_name", "truncate", "truncate_side")
OPTIONS += ("numbers", "dimensions", "normalize")
SEEN_BITS = 2**27  # 16 MiB at most: the pages of an anonymous map take memory once they are written


class StoredRow(NamedTuple):
    id: Any
    chunk: int | None  # its number, with --chunk
    columns: dict[str, Any]  # the id and the fingerprint included
    vectors: dict[str, Any]  # by column; None for a row without


class DatabaseOutput(BulkOutput):
    """A table or collection with one entry for each row. The reading and the writing thread call it."""

    form: str  # of OUT, for errors

    def __init__(self, job: BulkJob) -> None:
        """Raises ConfigError for an invalid URL."""
        url = urlsplit(job.out_url or "")
        if "@" in url.path + url.query + url.fragment:
            raise ConfigError("OUT: write / ? # in a password as %2F %3F %23, and @ after the host as %40")
        login, _, self._host = url.netloc.rpartition("@")  # with the port
        self._user, _, secret = login.partition(":")
        self._secret = unquote(secret)
        self._query = url.query
        self._path, _, entries = url.path.rpartition("/")
        self._entries = unquote(entries)  # the table or collection
        if not entries:
            raise ConfigError(f"OUT: expected {self.form}")
        self.name = f"{url.scheme}://{self._host}{url.path}"
        self._job = job
        self._lock = Lock()
        self._id = job.id_column or ID
        self._has_id = True  # else it is a hash
        self._written = 0  # rows of this run
        self._salt = b""  # of all fingerprints
        self._fingerprint_name = job.name_of(FINGERPRINT)  # the column, or the field of the payload
        # A bit for the hash of each id that this run embeds. Equal hashes of two ids only embed a row again.
        self._seen = mmap(-1, SEEN_BITS // 8)

    def begin(self, rows: Iterator[Rows]) -> Iterator[Rows]:
        found, rows = first_columns(rows)
        columns = found if isinstance(found, dict) else {field.name: str(field.type) for field in found}
        self._job.check_columns(columns)
        self._has_id = self._id in columns
        if not self._has_id and self._job.id_column is not None:
            raise ConfigError(f"--id-column: IN has no column {self._id!r}")
        added = {self._job.name_of(kind): [""] for kind in (*self._job.kinds, *self._error_column)}
        chunks: dict[str, Sequence[Any]] = {self._job.name_of(name): [0] for name in self._job.chunk_columns}
        stored = set(self._stored_columns()).difference(columns)
        has_chunks = stored.issuperset(map(self._job.name_of, CHUNK_COLUMNS))
        # Entries of an earlier job that are chunks, if those of this one are not, or the reverse: it replaces none.
        if self._fingerprint_name in stored and has_chunks != (self._job.chunk is not None):
            content = "chunks; set --chunk" if has_chunks else "whole texts; leave out --chunk"
            raise ConfigError(f"OUT: {self.name} has {content}, or name a new one")
        self._add_columns({self._id: [UUID(int=0)], **columns, **chunks, **added, self._fingerprint_name: [""]})
        return rows

    def check(self, facts: ModelFacts) -> None:
        dimensions = self._job.dimensions or facts.dimensions
        if "dense" in self._job.kinds and dimensions:
            self._add_vector("dense", dimensions)

    def start(self, manifest: Manifest, widths: Mapping[str, int], facts: Mapping[str, Any]) -> frozenset[int]:
        options = [manifest.options[name] for name in OPTIONS]
        form = self._job.multivectors
        chunk = [] if self._job.chunk is None else [self._job.chunk]
        self._salt = msgspec.json.encode(
            [manifest.space, self._job.kinds, options, *([] if form == COLBERT_ROWS else [form]), *chunk]
        )
        for kind in self._job.kinds:
            is_packed = kind == "dense" and self._job.numbers == "ubinary"
            self._add_vector(kind, widths[kind] * (8 if is_packed else 1))
        self._create()
        return frozenset()

    def new_rows(self, rows: Rows) -> Rows:
        """Also a stored row after another one with its id that is new: the last one must be written last."""
        keys = []
        for row, number, text in zip(rows.mappings(), rows.numbers, rows.texts, strict=True):
            self._check_row(row, number)
            encoded = msgspec.json.encode(row, enc_hook=str)
            if isinstance(text, Media):  # the row may have only its name
                encoded += hashlib.blake2b(text.data, digest_size=16).digest()
            id_: Any = row.get(self._id)
            if not self._has_id:
                id_ = UUID(bytes=hashlib.blake2b(encoded, digest_size=16).digest())
            elif id_ in (None, ""):
                raise BulkFailed(f"Row {number}, counted from 0: `{self._id}` is empty")
            elif isinstance(text, Media) and text.page is not None:
                if not isinstance(id_, str):
                    raise BulkFailed(
                        f"Row {number}, counted from 0: `{self._id}` of a PDF must be a string: each page adds #N"
                    )
                id_ = f"{id_}#{text.page}"
            keys.append(RowKey(id_, hashlib.blake2b(self._salt + encoded, digest_size=16).hexdigest()))
        rows = replace(rows, keys=keys)
        if self._job.restart or not keys:
            return rows
        with self._lock:
            stored = set(self._fingerprints([key.id for key in keys]))
        places = []
        for place, key in enumerate(keys):
            hashed = hashlib.blake2b(str(key.id).encode(), digest_size=8).digest()
            byte, bit = divmod(int.from_bytes(hashed) % SEEN_BITS, 8)
            if self._seen[byte] >> bit & 1 or key.fingerprint not in stored:
                self._seen[byte] |= 1 << bit
                places.append(place)
        return rows.take(places)

    def write(self, part: int, rows: Sequence[EmbeddedRows]) -> None:
        mappings = [row for group in rows for row in group.rows.mappings()]
        keys = [key for group in rows for key in group.rows.keys]
        vectors = {self._job.name_of(kind): each_row(rows, kind) for kind in self._job.kinds}
        numbers, errors = numbers_of(rows), errors_of(rows)
        failed = {number for number, error in zip(numbers, errors, strict=True) if error}
        last = {str(key.id): number for key, number in zip(keys, numbers, strict=True)}  # rows with one id: the last
        chunks = chunk_columns(rows, self._job)
        chunk = next(iter(chunks.values()), None)  # the first of CHUNK_COLUMNS
        entries = []
        for place, (row, key, number) in enumerate(zip(mappings, keys, numbers, strict=True)):
            if last[str(key.id)] != number:
                continue
            fingerprint = None if number in failed else key.fingerprint
            columns = {**row, self._id: key.id, self._fingerprint_name: fingerprint}
            columns |= {name: values[place] for name, values in chunks.items()}
            columns |= {self._job.name_of(name): errors[place] for name in self._error_column}
            made = {name: kind[place] for name, kind in vectors.items()}
            entries.append(StoredRow(key.id, None if chunk is None else chunk[place], columns, made))
        if entries:
            with self._lock:
                self._upsert(entries)
            self._written += len(set(numbers))

    @property
    def _error_column(self) -> Sequence[str]:
        return [ERROR] if self._job.on_error == "null" else []

    def _before_start(self, call: Callable[[], T]) -> T:
        """The result of a call before the job begins."""
        try:
            return call()
        except (BulkFailed, RetryLater) as cause:
            raise ConfigError(str(cause)) from None

    def _problem(self, reason: str) -> str:
        """The message of an error."""
        stored = f"; {self._written:,} rows of this run are stored" if self._written else ""
        return f"OUT: {self.name}: {reason}{stored}"

    @abstractmethod
    def _stored_columns(self) -> Iterable[str]:
        """The names of the columns of a table, or of any entry of a collection; none if there is none."""

    def _add_columns(self, columns: Mapping[str, Sequence[Any]]) -> None:
        """columns: names -> the values of the first rows, or the name of the Arrow type.

        Raises ConfigError for a name that is not possible, and if a table exists without these columns.
        """

    def _check_row(self, row: Mapping[str, Any], number: int) -> None:
        """Raises BulkFailed if the row cannot be stored."""
        self._job.check_columns(row)

    @abstractmethod
    def _add_vector(self, kind: str, width: int) -> None:
        """Raises ConfigError if a table exists with other vectors of this kind. width: 0 for sparse ones."""

    @abstractmethod
    def _create(self) -> None:
        """The table, if there is none."""

    @abstractmethod
    def _fingerprints(self, ids: Sequence[Any]) -> Iterable[str | None]:
        """Those of the entries with these ids; with --chunk, of each row's first chunk, which is stored last."""

    @abstractmethod
    def _upsert(self, entries: Sequence[StoredRow]) -> None:
        """Store all entries of these rows, and delete further chunks of them."""

    def _counts(self, entries: Sequence[StoredRow]) -> dict[Any, int]:
        """The number of chunks of each row, by id; none without --chunk."""
        chunks = self._job.name_of("chunks")
        return {entry.id: entry.columns[chunks] for entry in entries if entry.chunk is not None}
