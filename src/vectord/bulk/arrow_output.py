"""Parquet and Arrow output. Runs in a thread.

Each part is a file of the format. `merge` joins them, into Parquet row groups of the size that readers prefer. The
added columns:

    chunk, chunks, chunk_start, chunk_stop      int64; only with --chunk
    dense      fixed_size_list<float|halffloat|int8|uint8>[D]
    sparse     list<struct<index: uint32, value: float>>
    colbert    list<fixed_size_list<float|halffloat>[C]>, one vector for each token
    error      string, why the row has no vectors; only with --on-error null
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from vectord.bulk.job import ERROR, BulkFailed, BulkJob
from vectord.bulk.outputs import FileFormat
from vectord.bulk.rows import (
    Array,
    EmbeddedRows,
    Rows,
    chunk_columns,
    dense_rows,
    each_row,
    errors_of,
    first_columns,
    numbers_of,
)
from vectord.schema import Sparse

METADATA = b"vectord"
ROW_GROUP_BYTES = 64 * 2**20
ROW_GROUP_ROWS = 131_072


class ArrowFormat(FileFormat):
    """Writes tables that all have one schema: the columns of the first rows, and the added ones."""

    def __init__(self, job: BulkJob) -> None:
        super().__init__(job, f".{job.output_format}")
        self._kept: Any = pa.schema([])  # the columns that IN has
        self._schema: Any = None

    def begin(self, rows: Iterator[Rows]) -> Iterator[Rows]:
        found, rows = first_columns(rows)
        if isinstance(found, dict):
            text = pa.string() if self._job.columns_as_text else None
            found = pa.schema([(name, text or _type_of(values)) for name, values in found.items()])
        self._kept = found
        self._job.check_columns(self._kept.names)
        return rows

    def start(self, widths: Mapping[str, int], facts: Mapping[str, Any]) -> None:
        super().start(widths, facts)
        added = [pa.field(name, array.type) for name, array in self._added(())]
        metadata = {**(self._kept.metadata or {}), METADATA: msgspec.json.encode(facts)}
        self._schema = pa.schema([*self._kept, *added], metadata)

    def write(self, file: Any, rows: Sequence[EmbeddedRows]) -> None:
        file.write_table(self._table(rows))

    def merge(self, parts: Sequence[Path], whole: Path) -> None:
        def conformed(table: Any) -> Any:
            """With the columns of OUT: --on-error may have changed after the part was written."""
            columns = [
                table[field.name] if field.name in table.schema.names else pa.nulls(len(table), field.type)
                for field in self._schema
            ]
            return pa.table(columns, schema=self._schema)

        held: list[Any] = []  # tables that become one row group
        with self.open(whole) as writer:
            for table in chain.from_iterable(map(self._tables, parts)):
                held.append(conformed(table))
                rows, size = sum(each.num_rows for each in held), sum(each.nbytes for each in held)
                if size >= ROW_GROUP_BYTES or rows >= ROW_GROUP_ROWS:
                    writer.write_table(pa.concat_tables(held))
                    held = []
            if held:
                writer.write_table(pa.concat_tables(held))

    def _table(self, rows: Sequence[EmbeddedRows]) -> Any:
        columns = [one.rows.columns for one in rows]
        if isinstance(columns[0], pa.RecordBatch):
            kept = pa.Table.from_batches(columns, self._kept)
        else:
            mappings = [row for each in columns for row in each]
            numbers, known = numbers_of(rows), set(self._kept.names)
            for number, row in zip(numbers, mappings, strict=True):
                if not row.keys() <= known:
                    new = next(name for name in row if name not in known)
                    raise BulkFailed(
                        f"Row {number}: column {new!r} is not in the first rows, which determine the columns of a "
                        "table; JSON Lines (OUT.jsonl) accept any columns"
                    )
            kept = pa.table([_column(mappings, field, numbers) for field in self._kept], schema=self._kept)
        return pa.table([*kept.columns, *(array for _, array in self._added(rows))], schema=self._schema)

    def _added(self, rows: Sequence[EmbeddedRows]) -> Iterator[tuple[str, Any]]:
        errors = errors_of(rows)
        failed = pa.array([error is not None for error in errors], pa.bool_())
        for name, values in chunk_columns(rows, self._job).items():
            yield name, pa.array(values, pa.int64())
        for kind in self._job.kinds:
            name = self._job.name_of(kind)
            if kind == "dense":
                width = self._widths["dense"]
                dense = dense_rows(rows, width, self._job.dense_dtype)
                yield name, pa.FixedSizeListArray.from_arrays(pa.array(dense.reshape(-1)), width, mask=failed)
            elif kind == "sparse":
                yield name, sparse_column(each_row(rows, "sparse"))
            elif kind == "muvera":
                width = self._widths["muvera"]
                encodings = dense_rows(rows, width, np.float32, "muvera").reshape(-1)
                yield name, pa.FixedSizeListArray.from_arrays(pa.array(encodings), width, mask=failed)
            else:
                dtype = self._job.colbert_dtype
                yield name, token_vectors_column(each_row(rows, "colbert"), self._widths["colbert"], dtype)
        if self._job.on_error == "null":
            yield self._job.name_of(ERROR), pa.array(errors, pa.string())

    def open(self, path: Path) -> Any:
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


def sparse_column(vectors: Sequence[Sparse | None]) -> Any:
    """list<struct<index: uint32, value: float>>"""
    offsets = _offsets([0 if vector is None else len(vector.indices) for vector in vectors])
    some = [vector for vector in vectors if vector is not None]
    indices = np.concatenate([vector.indices for vector in some] or [np.zeros(0, np.int32)]).astype(np.uint32)
    values = np.concatenate([vector.values for vector in some] or [np.zeros(0, np.float32)])
    pairs = pa.StructArray.from_arrays([pa.array(indices), pa.array(values)], ["index", "value"])
    return pa.ListArray.from_arrays(offsets, pairs, mask=_nulls(vectors))


def token_vectors_column(vectors: Sequence[Array | None], width: int, dtype: npt.DTypeLike = "f4") -> Any:
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


def _column(rows: Sequence[Mapping[str, Any]], field: Any, numbers: Sequence[int]) -> Any:
    """The column of this field. A string column accepts any value, as JSON; a number column accepts numbers only."""
    values = [row.get(field.name) for row in rows]
    if pa.types.is_string(field.type):
        is_text = (str, type(None))
        values = [one if isinstance(one, is_text) else msgspec.json.encode(one).decode() for one in values]
    elif pa.types.is_floating(field.type):
        values = [float(value) if type(value) is int and abs(value) < 2**53 else value for value in values]
    for number, value in zip(numbers, values, strict=True):
        if value is not None and not _fits(value, field.type):
            raise BulkFailed(
                f"Row {number}: `{field.name}` is {type(value).__name__}, but {field.type} in the first "
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
