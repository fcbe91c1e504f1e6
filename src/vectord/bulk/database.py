"""What databases have in common: a row's id, and the fingerprint by which a later run skips the rows that are stored.

Rows are upserted by their id: the column `id`, or the one of --id-column; without both, a hash of the row. The
fingerprint is a hash of the row's columns, the vector space and the options, so a changed row is embedded again.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from threading import Lock
from typing import Any, NamedTuple, TypeVar
from urllib.parse import SplitResult
from uuid import UUID

import msgspec

from vectord.bulk.embedder import ModelFacts
from vectord.bulk.job import ERROR, FINGERPRINT, BulkFailed, BulkJob, Manifest, RetryLater
from vectord.bulk.outputs import BulkOutput, VectorWidths
from vectord.bulk.rows import EmbeddedRows, Rows, each_row, errors_of, first_rows, numbers_of
from vectord.errors import ConfigError
from vectord.schema import COLBERT_ROWS

T = TypeVar("T")

ID = "id"
OPTIONS: tuple[str, ...] = ("column", "prefix", "kind", "prompt", "prompt_name", "truncate", "truncate_side")
OPTIONS += ("numbers", "dimensions", "normalize")
SEEN_BITS = 2**27  # 16 MiB


class StoredRow(NamedTuple):
    id: Any
    columns: dict[str, Any]  # the id and the fingerprint included
    vectors: dict[str, Any]  # by column; None for a row without


class DatabaseOutput(BulkOutput):
    """A table or collection with one entry for each row. The reading and the writing thread call it."""

    def __init__(self, job: BulkJob, url: SplitResult) -> None:
        if "@" in url.path + url.query + url.fragment:
            raise ConfigError("OUT: write / ? # in a password as %2F %3F %23, and @ after the host as %40")
        self.name = f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}"
        self._job = job
        self._lock = Lock()
        self._id = job.id_column or ID
        self._has_id = True  # else it is a hash
        self._written = 0  # rows of this run
        self._salt = b""  # of all fingerprints
        self._fingerprint_name = job.name_of(FINGERPRINT)  # the column, or the field of the payload
        # A bit for the hash of each id that this run embeds. Equal hashes of two ids only embed a row again.
        self._seen = bytearray(SEEN_BITS // 8)

    def begin(self, rows: Iterator[Rows]) -> Iterator[Rows]:
        first, rows = first_rows(rows)
        columns: dict[str, Sequence[Any]]
        if isinstance(table := first[0].columns, list):
            mappings = [row for group in first for row in group.mappings()]
            names = dict.fromkeys(chain.from_iterable(mappings))
            columns = {name: [row.get(name) for row in mappings] for name in names}
        else:
            columns = {field.name: str(field.type) for field in table.schema}
        self._job.check_columns(columns)
        self._has_id = self._id in columns
        if not self._has_id and self._job.id_column is not None:
            raise ConfigError(f"--id-column: IN has no column {self._id!r}")
        added = {self._job.name_of(kind): [""] for kind in (*self._job.kinds, *self._error_column)}
        self._add_columns({self._id: [UUID(int=0)], **columns, **added, self._fingerprint_name: [""]})
        return rows

    def check(self, facts: ModelFacts) -> None:
        dimensions = self._job.dimensions or facts.dimensions
        if "dense" in self._job.kinds and dimensions:
            self._add_vector("dense", dimensions)

    def start(self, manifest: Manifest, widths: VectorWidths, facts: Mapping[str, Any]) -> frozenset[int]:
        options = [manifest.options[name] for name in OPTIONS]
        form = self._job.multivectors
        self._salt = msgspec.json.encode(
            [manifest.space, self._job.kinds, options, *([] if form == COLBERT_ROWS else [form])]
        )
        found = {"dense": widths.dense * (8 if self._job.numbers == "ubinary" else 1)}
        found |= {"colbert": widths.colbert, "muvera": widths.muvera}
        for kind in self._job.kinds:
            self._add_vector(kind, found.get(kind, 0))
        self._create()
        return frozenset()

    def new_rows(self, rows: Rows) -> Rows:
        """Also a stored row after another one with its id that is new: the last one must be written last."""
        mappings = rows.mappings()
        ids = []
        for row, number in zip(mappings, rows.numbers, strict=True):
            self._check_row(row, number)
            ids.append(self._id_of(row, number))
        if self._job.restart or not ids:
            return rows
        with self._lock:
            stored = set(self._fingerprints(ids))
        places = []
        for place, (id_, row) in enumerate(zip(ids, mappings, strict=True)):
            hashed = hashlib.blake2b(str(id_).encode(), digest_size=8).digest()
            byte, bit = divmod(int.from_bytes(hashed) % SEEN_BITS, 8)
            if self._seen[byte] >> bit & 1 or self._fingerprint(row) not in stored:
                self._seen[byte] |= 1 << bit
                places.append(place)
        return rows.take(places)

    def write(self, part: int, rows: Sequence[EmbeddedRows]) -> None:
        mappings = [row for group in rows for row in group.rows.mappings()]
        vectors = {self._job.name_of(kind): each_row(rows, kind) for kind in self._job.kinds}
        entries = []
        for place, (row, number, error) in enumerate(zip(mappings, numbers_of(rows), errors_of(rows), strict=True)):
            id_ = self._id_of(row, number)
            columns = {**row, self._id: id_, self._fingerprint_name: None if error else self._fingerprint(row)}
            columns |= {self._job.name_of(name): error for name in self._error_column}
            entries.append(StoredRow(id_, columns, {name: made[place] for name, made in vectors.items()}))
        if entries:
            with self._lock:
                self._upsert(entries)
            self._written += len(entries)

    @property
    def _error_column(self) -> Sequence[str]:
        return [ERROR] if self._job.on_error == "null" else []

    def _before_start(self, call: Callable[[], T]) -> T:
        """The result of a call before the job begins. Raises ConfigError."""
        try:
            return call()
        except (BulkFailed, RetryLater) as cause:
            raise ConfigError(str(cause)) from None

    def _problem(self, reason: str) -> str:
        """The message of an error."""
        stored = f"; {self._written:,} rows of this run are stored" if self._written else ""
        return f"OUT: {self.name}: {reason}{stored}"

    def _id_of(self, row: Mapping[str, Any], number: int) -> Any:
        if not self._has_id:
            return UUID(bytes=hashlib.blake2b(_encoded(row), digest_size=16).digest())
        if (found := row.get(self._id)) in (None, ""):
            raise BulkFailed(f"Row {number}, counted from 0: `{self._id}` is empty")
        return found

    def _fingerprint(self, row: Mapping[str, Any]) -> str:
        return hashlib.blake2b(self._salt + _encoded(row), digest_size=16).hexdigest()

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
        """Those of the entries with these ids."""

    @abstractmethod
    def _upsert(self, entries: Sequence[StoredRow]) -> None: ...


def _encoded(row: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(row, enc_hook=str)
