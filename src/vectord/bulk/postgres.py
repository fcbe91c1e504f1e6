"""PostgreSQL with pgvector: a row of a table for each row of IN.

Vectors are sent as text, which pgvector parses: dense as vector, halfvec or bit; sparse as sparsevec; ColBERT as an
array of vectors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit
from uuid import UUID

import msgspec
import numpy as np
import orjson
import psycopg

from vectord.bulk.database import FINGERPRINT, DatabaseOutput, StoredRow
from vectord.bulk.job import BulkFailed, BulkJob, RetryLater
from vectord.errors import ConfigError

Connection: TypeAlias = "psycopg.Connection[Any]"
T = TypeVar("T")

SPARSE_DIMENSIONS = 1_000_000  # of sparsevec: more than the vocabulary of any model
DENSE_TYPES = {"float32": "vector", "float16": "halfvec", "ubinary": "bit"}
TYPES: Mapping[type, str] = MappingProxyType(
    {bool: "boolean", int: "bigint", float: "double precision", Decimal: "numeric", str: "text", bytes: "bytea"}
    | {date: "date", datetime: "timestamptz", UUID: "uuid"}
)
FIND_COLUMNS = """SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
    WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"""


class PostgresOutput(DatabaseOutput):
    def __init__(self, job: BulkJob) -> None:
        """Raises ConfigError if the database cannot be reached, or lacks pgvector."""
        if job.numbers not in DENSE_TYPES:
            raise ConfigError(f"--numbers: pgvector has {', '.join(DENSE_TYPES)}")
        url = urlsplit(job.out_url or "")
        database, _, table = url.path[1:].partition("/")
        if not table or "/" in table:
            raise ConfigError("OUT: expected postgresql://USER@HOST/DATABASE/TABLE")
        super().__init__(job, url)
        self._password = unquote(url.password or "")
        self._url = urlunsplit((url.scheme, url.netloc, "/" + database, url.query, ""))
        self._table = ".".join(map(_quoted, unquote(table).split(".")))
        self._connection: Connection | None = None
        if not self._check(lambda: self._execute("SELECT FROM pg_available_extensions WHERE name = 'vector'")):
            self.close()
            raise ConfigError(f"OUT: {self.name}: the server has no pgvector")
        columns = self._check(lambda: self._execute(FIND_COLUMNS, [self._table.replace("%%", "%")]))
        self._existing: dict[str, str] = dict(columns)  # type of each column; none if there is no table
        self._types: dict[str, str] = {}  # of the columns that this job writes

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _check_columns(self, columns: Mapping[str, Sequence[Any]]) -> None:
        self._types = {name: _type_of(values) for name, values in columns.items()}
        if self._existing:
            if missing := next((name for name in columns if name not in self._existing), None):
                raise ConfigError(f"OUT: {self.name} has no column {missing!r}; add it, or name a new table")
            self._types = {name: self._existing[name] for name in columns}
            # whether the id is unique and the table may be written
            self._check(lambda: self._execute(f"EXPLAIN {self._insert()}", [None] * len(columns)))

    def _check_width(self, kind: str, width: int) -> None:
        number_type = (
            self._job.numbers if kind == "dense" else "float16" if self._job.numbers == "float16" else "float32"
        )
        expected = f"{DENSE_TYPES[number_type]}({width})" + ("[]" if kind == "colbert" else "")
        if kind == "sparse":
            expected = f"sparsevec({SPARSE_DIMENSIONS})"
        name = self._job.name_of(kind)
        found = self._existing.get(name, expected).rpartition(".")[2]  # without the extension's schema
        if found not in (expected, re.sub(r"\(\d+\)", "", expected)):  # a column without a width accepts any
            raise ConfigError(f"OUT: the column {name} of {self.name} is {found}, and the vectors are {expected}")
        self._types[name] = expected

    def _create(self) -> None:
        if self._existing:
            return
        columns = ", ".join(f"{_quoted(name)} {type_name}" for name, type_name in self._types.items())

        def create(connection: Connection) -> None:
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(hashtext('vectord'))")  # shards may start together
                connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
                table = f"CREATE TABLE IF NOT EXISTS {self._table} ({columns}, PRIMARY KEY ({_quoted(self._id)}))"
                connection.execute(table.encode(), [])

        self._call(create)

    def _insert(self) -> str:
        names = ", ".join(map(_quoted, self._types))
        places = ", ".join(["%s"] * len(self._types))
        changed = ", ".join(f"{_quoted(name)} = excluded.{_quoted(name)}" for name in self._types if name != self._id)
        return (
            f"INSERT INTO {self._table} ({names}) VALUES ({places}) "  # noqa: S608 - quoted
            f"ON CONFLICT ({_quoted(self._id)}) DO UPDATE SET {changed}"
        )

    def _fingerprints(self, ids: Sequence[Any]) -> Iterable[str | None]:
        wanted = f"{_quoted(self._id)} = ANY(%s::{self._types[self._id]}[])"
        query = f"SELECT {FINGERPRINT} FROM {self._table} WHERE {wanted}"  # noqa: S608 - quoted
        return (fingerprint for (fingerprint,) in self._execute(query, [list(map(str, ids))]))

    def _upsert(self, entries: Sequence[StoredRow]) -> None:
        rows = []
        for entry in entries:
            if new := next((name for name in entry.columns if name not in self._types), None):
                raise BulkFailed(f"The column {new!r} is not in the first rows, which determine the columns of a table")
            values = {name: _value(entry.columns.get(name), type_name) for name, type_name in self._types.items()}
            for name, vector in entry.vectors.items():
                values[name] = None if vector is None else _vector_text(self._types[name], vector)
            rows.append(list(values.values()))

        def upsert(connection: Connection) -> None:
            with connection.transaction(), connection.cursor() as cursor:
                cursor.executemany(self._insert().encode(), rows)

        self._call(upsert)

    def _execute(self, query: str, parameters: Sequence[Any] = ()) -> list[Any]:
        return self._call(lambda connection: connection.execute(query.encode(), parameters).fetchall())

    def _call(self, call: Callable[[Connection], T]) -> T:
        """The result of `call`, on a new connection if the last one is lost. Raises RetryLater, BulkFailed."""
        try:
            if self._connection is None or self._connection.closed:
                self._connection = psycopg.connect(self._url, autocommit=True)
            return call(self._connection)
        except (psycopg.OperationalError, psycopg.InterfaceError) as lost:
            self.close()
            raise RetryLater(self._message(lost), None) from None
        except psycopg.Error as cause:
            raise BulkFailed(self._message(cause)) from None

    def _message(self, error: psycopg.Error) -> str:
        """In one line, and without a password: libpq may quote parts of the URL."""
        reason = " ".join((error.diag.message_primary or str(error)).split())
        return self._problem(reason.replace(self._password, "***") if self._password else reason)


def _quoted(name: str) -> str:
    """An identifier in a query with parameters."""
    return '"' + name.replace('"', '""').replace("%", "%%") + '"'


def _type_of(values: Sequence[Any]) -> str:
    types = {type(value) for value in values} - {type(None)}
    if types == {int, float}:
        return TYPES[float]
    return TYPES.get(types.pop(), "jsonb") if len(types) == 1 else "jsonb" if types else "text"


def _value(value: Any, type_name: str) -> Any:
    """As a parameter; the server converts it to the type of the column."""
    if value is not None and (type_name in {"json", "jsonb"} or isinstance(value, list | dict)):
        return msgspec.json.encode(value, enc_hook=str).decode()
    return value


def _vector_text(type_name: str, vector: Any) -> str:
    if type_name.startswith("bit"):
        return "".join(map(str, np.unpackbits(vector)))
    if type_name.startswith("sparsevec"):
        pairs = zip(vector.indices.tolist(), vector.values.tolist(), strict=True)
        return f"{{{','.join(f'{index + 1}:{value}' for index, value in pairs)}}}/{SPARSE_DIMENSIONS}"
    if type_name.endswith("[]"):
        return "{" + ",".join(f'"{_numbers(row)}"' for row in vector) + "}"
    return _numbers(vector)


def _numbers(vector: Any) -> str:
    return orjson.dumps(np.ascontiguousarray(vector, np.float32), option=orjson.OPT_SERIALIZE_NUMPY).decode()
