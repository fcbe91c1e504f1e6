"""Parquet and Arrow output. Runs in a thread.

Each part is a file of the format. `merge` joins them, into Parquet row groups of the size that readers prefer. The
added columns:

    dense      fixed_size_list<float|halffloat|int8|uint8>[D]
    sparse     list<struct<index: uint32, value: float>>
    colbert    list<fixed_size_list<float|halffloat>[C]>, one vector for each token
    error      string, why the row has no vectors; only with --on-error null
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vectord.bulk.job import ERROR, BulkFailed, BulkJob
from vectord.bulk.outputs import BulkOutput, PartFile, VectorWidths
from vectord.bulk.rows import Array, Columns, EmbeddedRows, Rows, dense_rows, each_row, errors_of
from vectord.schema import Sparse

METADATA = b"vectord"
ROW_GROUP_BYTES = 64 * 2**20
ROW_GROUP_ROWS = 131_072
FIRST_ROWS, FIRST_BYTES = 4096, 32 * 2**20  # of IN, which determine the columns of a table
NUMPY_DTYPES = {"float32": "f4", "float16": "f2", "int8": "i1", "uint8": "u1", "ubinary": "u1"}


class ArrowOutput(BulkOutput):
    """Writes tables that all have one schema: the columns of the first rows, and the added ones."""

    def __init__(self, job: BulkJob, widths: VectorWidths, facts: Mapping[str, Any]) -> None:
        self._job = job
        self._widths = widths
        self._facts = facts
        self._kept: Any = None  # the schema of the columns that IN has
        self._schema: Any = None
        self.suffix = f".{job.output_format}"

    def begin(self, rows: Iterator[Rows]) -> Iterator[Rows]:
        """Runs in the reading thread. Raises BulkFailed if IN has a column with the name of an added one."""
        first: list[Rows] = []
        for group in rows:
            first.append(group)
            is_table = isinstance(group.columns, pa.RecordBatch)
            n_bytes = sum(one.size_bytes for one in first)
            if is_table or n_bytes >= FIRST_BYTES or sum(map(len, first)) >= FIRST_ROWS:
                break
        if first:
            self._set_schema([group.columns for group in first])
        return chain(first, rows)

    def _set_schema(self, columns: Sequence[Columns]) -> None:
        if isinstance(columns[0], pa.RecordBatch):
            self._kept = columns[0].schema
        else:
            rows = [row for group in columns for row in group]
            values = {name: [row.get(name) for row in rows] for name in dict.fromkeys(chain.from_iterable(rows))}
            as_text = self._job.columns_as_text
            self._kept = pa.schema(
                [(name, pa.string() if as_text else _type_of(some)) for name, some in values.items()]
            )
        for name in (*self._job.kinds, ERROR):
            if self._job.name_of(name) in self._kept.names:
                raise BulkFailed(f"IN already has a column {self._job.name_of(name)!r}; set --output-column PREFIX.")
        added = [pa.field(name, array.type) for name, array in self._added(())]
        metadata = {**(self._kept.metadata or {}), METADATA: msgspec.json.encode(self._facts)}
        self._schema = pa.schema([*self._kept, *added], metadata)

    def open(self, path: Path) -> PartFile:
        return _TableFile(self._writer(path), self._table)

    def merge(self, parts: Sequence[Path], whole: Path) -> None:
        def conformed(table: Any) -> Any:
            """With the columns of OUT: --on-error may have changed after the part was written."""
            columns = [
                table[field.name] if field.name in table.schema.names else pa.nulls(len(table), field.type)
                for field in self._schema
            ]
            return pa.table(columns, schema=self._schema)

        with self._writer(whole) as writer:
            for table in _row_groups(conformed(table) for part in parts for table in self._tables(part)):
                writer.write_table(table)

    def _table(self, rows: Sequence[EmbeddedRows], first_row: int) -> Any:
        columns = [one.rows.columns for one in rows]
        if isinstance(columns[0], pa.RecordBatch):
            kept = pa.Table.from_batches(columns, self._kept)
        else:
            kept = _table_of([row for mappings in columns for row in mappings], self._kept, first_row)
        return pa.table([*kept.columns, *(array for _, array in self._added(rows))], schema=self._schema)

    def _added(self, rows: Sequence[EmbeddedRows]) -> Iterator[tuple[str, Any]]:
        errors = errors_of(rows)
        failed = pa.array([error is not None for error in errors], pa.bool_())
        numbers = self._job.numbers
        for kind in self._job.kinds:
            name = self._job.name_of(kind)
            if kind == "dense":
                width = self._widths.dense
                dense = dense_rows(rows, width, NUMPY_DTYPES[numbers])
                yield name, pa.FixedSizeListArray.from_arrays(pa.array(dense.reshape(-1)), width, mask=failed)
            elif kind == "sparse":
                yield name, sparse_column(each_row(rows, "sparse"))
            else:
                dtype = "f2" if numbers == "float16" else "f4"
                yield name, token_vectors_column(each_row(rows, "colbert"), self._widths.colbert, dtype)
        if self._job.on_error == "null":
            yield self._job.name_of(ERROR), pa.array(errors, pa.string())

    def _writer(self, path: Path) -> Any:
        if self._job.output_format == "arrow":
            return pa.ipc.new_file(str(path), self._schema)
        if self._job.output_format == "arrows":
            return pa.ipc.new_stream(str(path), self._schema)
        added = {self._job.name_of(name) for name in self._job.kinds}
        dictionaries = [
            field.name for field in self._schema if field.name not in added and not pa.types.is_nested(field.type)
        ]
        return pq.ParquetWriter(path, self._schema, compression="zstd", use_dictionary=dictionaries or False)

    def _tables(self, part: Path) -> Iterator[Any]:
        if self._job.output_format == "parquet":
            with pq.ParquetFile(part) as file:
                for group in range(file.num_row_groups):
                    yield file.read_row_group(group, use_threads=False)
            return
        with pa.OSFile(str(part)) as file:  # a memory map would count as this process's memory
            if self._job.output_format == "arrow":
                opened = pa.ipc.open_file(file)
                batches = map(opened.get_batch, range(opened.num_record_batches))
            else:
                batches = pa.ipc.open_stream(file)
            for batch in batches:
                yield pa.Table.from_batches([batch])


class _TableFile:
    def __init__(self, writer: Any, table_of: Callable[[Sequence[EmbeddedRows], int], Any]) -> None:
        self._writer = writer
        self._table_of = table_of

    def write(self, rows: Sequence[EmbeddedRows], first_row: int) -> None:
        self._writer.write_table(self._table_of(rows, first_row))

    def close(self) -> None:
        self._writer.close()


def _row_groups(tables: Iterable[Any]) -> Iterator[Any]:
    """Join tables, each to the size of one row group."""
    held: list[Any] = []
    for table in tables:
        held.append(table)
        rows, size = sum(each.num_rows for each in held), sum(each.nbytes for each in held)
        if size >= ROW_GROUP_BYTES or rows >= ROW_GROUP_ROWS:
            yield pa.concat_tables(held)
            held = []
    if held:
        yield pa.concat_tables(held)


def sparse_column(vectors: Sequence[Sparse | None]) -> Any:
    """list<struct<index: uint32, value: float>>"""
    offsets = _offsets([0 if vector is None else len(vector.indices) for vector in vectors])
    some = [vector for vector in vectors if vector is not None]
    indices = np.concatenate([vector.indices for vector in some] or [np.zeros(0, np.int32)]).astype(np.uint32)
    values = np.concatenate([vector.values for vector in some] or [np.zeros(0, np.float32)])
    pairs = pa.StructArray.from_arrays([pa.array(indices), pa.array(values)], ["index", "value"])
    return pa.ListArray.from_arrays(offsets, pairs, mask=_nulls(vectors))


def token_vectors_column(vectors: Sequence[Array | None], width: int, dtype: str = "f4") -> Any:
    """list<fixed_size_list<dtype>[width]>, from matrices of one row per token."""
    offsets = _offsets([0 if vector is None else len(vector) for vector in vectors])
    some = [vector for vector in vectors if vector is not None and len(vector)]
    numbers = np.concatenate(some).astype(dtype) if some else np.zeros((0, width), dtype)
    rows = pa.FixedSizeListArray.from_arrays(pa.array(numbers.reshape(-1)), width)
    return pa.ListArray.from_arrays(offsets, rows, mask=_nulls(vectors))


def _nulls(values: Sequence[object]) -> Any:
    return pa.array([value is None for value in values], pa.bool_())


def _offsets(lengths: Sequence[int]) -> Any:
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))  # (N + 1,)


# --- columns from mappings -------------------------------------------------------------------------------------


def _type_of(values: Sequence[Any]) -> Any:
    """The type of a column. Lists, objects and mixed types are strings of JSON."""
    types = {type(value) for value in values} - {type(None)}
    if types == {bool}:
        return pa.bool_()
    if types == {int} and all(-(2**63) <= (value or 0) < 2**63 for value in values):
        return pa.int64()
    return pa.float64() if types in ({float}, {int, float}) else pa.string()


def _table_of(rows: Sequence[Mapping[str, Any]], schema: Any, first_row: int) -> Any:
    known = set(schema.names)
    for index, row in enumerate(rows):
        if not row.keys() <= known:
            new = next(name for name in row if name not in known)
            raise BulkFailed(
                f"Row {first_row + index}: column {new!r} is not in the first rows, which determine the columns of a "
                "table; JSON Lines (OUT.jsonl) accept any columns"
            )
    return pa.table([_column(rows, field, first_row) for field in schema], schema=schema)


def _column(rows: Sequence[Mapping[str, Any]], field: Any, first_row: int) -> Any:
    """The column of this field. A string column accepts any value, as JSON; a number column accepts numbers only."""
    values = [row.get(field.name) for row in rows]
    if pa.types.is_string(field.type):
        is_text = (str, type(None))
        values = [one if isinstance(one, is_text) else msgspec.json.encode(one).decode() for one in values]
    elif pa.types.is_floating(field.type):
        values = [float(value) if type(value) is int and abs(value) < 2**53 else value for value in values]
    for index, value in enumerate(values):
        if value is not None and not _fits(value, field.type):
            raise BulkFailed(
                f"Row {first_row + index}: `{field.name}` is {type(value).__name__}, but {field.type} in the first "
                "rows; --columns-as-text writes such columns as text"
            )
    return pa.array(values, field.type)


def _fits(value: object, kind: Any) -> bool:
    if pa.types.is_boolean(kind):
        return isinstance(value, bool)
    if pa.types.is_integer(kind):
        return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    if pa.types.is_floating(kind):
        return isinstance(value, float)
    return True
