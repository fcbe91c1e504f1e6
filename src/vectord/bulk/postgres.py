"""PostgreSQL with pgvector: a row of a table for each row of IN.

Vectors are sent as text, which pgvector parses: dense as vector, halfvec or bit; sparse as sparsevec; ColBERT as an
array of vectors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

import msgspec
import numpy as np
import orjson
import psycopg

from vectord.bulk.database import DatabaseOutput, StoredRow
from vectord.bulk.job import BulkFailed, BulkJob, RetryLater
from vectord.errors import ConfigError

Connection: TypeAlias = "psycopg.Connection[Any]"
T = TypeVar("T")

SPARSE_DIMENSIONS = 1_000_000  # of sparsevec: more than the vocabulary of any model
DENSE_TYPES = {"float32": "vector", "float16": "halfvec", "ubinary": "bit"}
TYPES: Mapping[type, str] = MappingProxyType(
    {bool: "boolean", int: "bigint", float: "double precision", str: "text", UUID: "uuid"}
)
ARROW_TYPES: Mapping[str, str] = MappingProxyType(  # a pattern of the name -> type; the others are jsonb
    {r"bool": "boolean", r"u?int(8|16|32)|int64": "bigint", r"uint64|decimal.*": "numeric"}
    | {r"halffloat|float|double": "double precision", r"null|(large_)?string(_view)?": "text"}
    | {r"((large|fixed_size)_)?binary(_view)?(\[.*)?": "bytea", r"extension<arrow\.uuid>": "uuid"}
    | {r"date.*": "date", r"timestamp\[\w+\]": "timestamp", r"timestamp.*": "timestamptz"}
)
INTEGERS = frozenset({"smallint", "integer", "bigint"})
SYSTEM_COLUMNS = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
MAX_NAME_BYTES = 63  # PostgreSQL shortens longer names
TEMPORARY = frozenset({"08", "40", "53", "57"})  # classes of errors: connection, conflict, resources, shutdown
DISK_FULL = "53100"
FIND_COLUMNS = """SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
    WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"""


class PostgresOutput(DatabaseOutput):
    form = "postgresql://USER@HOST/DATABASE/TABLE"

    def __init__(self, job: BulkJob) -> None:
        """Raises ConfigError if the database cannot be reached, or lacks pgvector."""
        if job.numbers not in DENSE_TYPES:
            raise ConfigError(f"--numbers: pgvector has {', '.join(DENSE_TYPES)}")
        super().__init__(job)
        if not re.fullmatch("/[^/]+", self._path):
            raise ConfigError(f"OUT: expected {self.form}")
        # libpq's errors may quote parts of the URL: the password is passed apart.
        user = f"{self._user}@" if self._user else ""
        self._url = f"postgresql://{user}{self._host}{self._path}?{self._query}"
        self._table = ".".join(map(_quoted, self._entries.split(".")))
        self._key = [self._id, *map(job.name_of, job.chunk_columns[:1])]
        self._connection: Connection | None = None
        self._ended = False
        if not self._before_start(lambda: self._execute("SELECT FROM pg_available_extensions WHERE name = 'vector'")):
            self.close()
            raise ConfigError(f"OUT: {self.name}: the server has no pgvector")
        columns = self._before_start(lambda: self._execute(FIND_COLUMNS, [self._table.replace("%%", "%")]))
        self._existing: dict[str, str] = dict(columns)  # type of each column; none if there is no table
        self._types: dict[str, str] = {}  # of the columns that this job writes

    def close(self) -> None:
        self._ended = True
        self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _stored_columns(self) -> Iterable[str]:
        return self._existing

    def _add_columns(self, columns: Mapping[str, Sequence[Any]]) -> None:
        for name in columns:
            if name in SYSTEM_COLUMNS or not 0 < len(name.encode()) <= MAX_NAME_BYTES:
                why = "it has its own" if name in SYSTEM_COLUMNS else f"names have 1 to {MAX_NAME_BYTES} bytes"
                raise ConfigError(f"IN: the column {name!r} cannot be in a table of PostgreSQL: {why}")
        self._types = {name: _type_of(values) for name, values in columns.items()}
        if self._existing:
            if missing := next((name for name in columns if name not in self._existing), None):
                raise ConfigError(f"OUT: {self.name} has no column {missing!r}; add it, or name a new table")
            self._types = {name: self._existing[name] for name in columns}
            # whether the id is unique and the table may be written
            self._before_start(lambda: self._execute(f"EXPLAIN {self._insert()}", [None] * len(columns)))

    def _check_row(self, row: Mapping[str, Any], number: int) -> None:
        super()._check_row(row, number)
        for name, value in row.items():
            type_name = self._types.get(name)
            if type_name is None:
                problem = "is not in the first rows, which determine the columns of a table"
            elif type_name in INTEGERS and isinstance(value, float | Decimal):
                problem = f"is {type(value).__name__}, but {type_name} in the table"  # which would round it
            elif isinstance(value, str) and "\0" in value:
                problem = "contains the character NUL, which PostgreSQL cannot store"
            else:
                continue
            raise BulkFailed(f"Row {number}, counted from 0: `{name}` {problem}")

    def _add_vector(self, kind: str, width: int) -> None:
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
                table = f"CREATE TABLE IF NOT EXISTS {self._table} ({columns}, PRIMARY KEY ({_listed(self._key)}))"
                connection.execute(table.encode(), [])

        self._call(create)

    def _insert(self) -> str:
        names = _listed(self._types)
        places = ", ".join(["%s"] * len(self._types))
        changed = ", ".join(
            f"{_quoted(name)} = excluded.{_quoted(name)}" for name in self._types if name not in self._key
        )
        return (
            f"INSERT INTO {self._table} ({names}) VALUES ({places}) "  # noqa: S608 - quoted
            f"ON CONFLICT ({_listed(self._key)}) DO UPDATE SET {changed}"
        )

    def _fingerprints(self, ids: Sequence[Any]) -> Iterable[str | None]:
        wanted = f"{_quoted(self._id)} = ANY(%s::{self._types[self._id]}[])"
        wanted += "".join(f" AND {_quoted(name)} = 0" for name in self._key[1:])
        query = f"SELECT {_quoted(self._fingerprint_name)} FROM {self._table} WHERE {wanted}"  # noqa: S608 - quoted
        return (fingerprint for (fingerprint,) in self._execute(query, [list(map(str, ids))]))

    def _upsert(self, entries: Sequence[StoredRow]) -> None:
        rows, counts = [], list(self._counts(entries).items())
        for entry in entries:
            values = {name: _value(entry.columns.get(name), type_name) for name, type_name in self._types.items()}
            for name, vector in entry.vectors.items():
                values[name] = None if vector is None else _vector_text(self._types[name], vector)
            rows.append(list(values.values()))

        def upsert(connection: Connection) -> None:
            with connection.transaction(), connection.cursor() as cursor:
                cursor.executemany(self._insert().encode(), rows)
                if counts:
                    further = f"{_quoted(self._key[0])} = %s AND {_quoted(self._key[1])} >= %s"
                    cursor.executemany(f"DELETE FROM {self._table} WHERE {further}".encode(), counts)  # noqa: S608

        self._call(upsert)

    def _execute(self, query: str, parameters: Sequence[Any] = ()) -> list[Any]:
        return self._call(lambda connection: connection.execute(query.encode(), parameters).fetchall())

    def _call(self, call: Callable[[Connection], T]) -> T:
        """The result of `call`, on a new connection if the last one is lost."""
        try:
            if self._connection is None or self._connection.closed:
                self._connection = psycopg.connect(self._url, autocommit=True, password=self._secret or None)
                if self._ended:  # the job ended while the reading thread was between two calls
                    self._disconnect()
            return call(self._connection)
        except psycopg.Error as error:
            message = self._problem(" ".join((error.diag.message_primary or str(error)).split()))
            if error.sqlstate is None:
                may_succeed = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
            else:
                may_succeed = error.sqlstate[:2] in TEMPORARY and error.sqlstate != DISK_FULL
            if not may_succeed:
                raise BulkFailed(message) from None
            self._disconnect()
            raise RetryLater(message, None) from None


def _quoted(name: str) -> str:
    """An identifier in a query with parameters."""
    return '"' + name.replace('"', '""').replace("%", "%%") + '"'


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(_quoted, names))


def _type_of(values: Sequence[Any]) -> str:
    """values: as for `_add_columns`."""
    if isinstance(values, str):
        return next((found for pattern, found in ARROW_TYPES.items() if re.fullmatch(pattern, values)), "jsonb")
    types = {type(value) for value in values} - {type(None)}
    if types == {int, float}:
        return TYPES[float]
    if types == {int} and not all(-(2**63) <= (value or 0) < 2**63 for value in values):
        return "numeric"
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
