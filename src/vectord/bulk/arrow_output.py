"""Parquet and Arrow output. Runs in a thread.

Each part is appended to an Arrow stream as one record batch. When the job ends, `finish` converts the stream into OUT,
and joins batches so that Parquet row groups have the size that readers prefer. The added columns:

    dense      fixed_size_list<float|halffloat|int8|uint8>[D]
    sparse     list<struct<index: uint32, value: float>>
    colbert    list<fixed_size_list<float|halffloat>[C]>, one vector for each token
    error      string, why the row has no vectors; only with --on-error null
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vectord.bulk.arrow_input import RecordBatch
from vectord.bulk.job import ERROR, BulkFailed, BulkJob
from vectord.bulk.outputs import BulkOutput
from vectord.bulk.rows import Array, EmbeddedRows, dense_rows, each_row, errors_of
from vectord.schema import Sparse

METADATA = b"vectord"
ROW_GROUP_BYTES = 64 * 2**20
ROW_GROUP_ROWS = 131_072
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # Arrow IPC: a continuation marker and length 0
NUMPY_DTYPES = {"float32": "f4", "float16": "f2", "int8": "i1", "uint8": "u1", "ubinary": "u1"}


class ArrowOutput(BulkOutput):
    """Converts parts to record batches, all with the schema of the first part, and writes OUT."""

    def __init__(self, job: BulkJob, facts: Mapping[str, Any]) -> None:
        self._job = job
        self._facts = facts
        self._schema: Any = None

    def resume(self, data: Path) -> None:
        with pa.memory_map(str(data)) as file:
            self._schema = pa.ipc.open_stream(file).schema

    def part(self, part: Sequence[EmbeddedRows], first_row: int, width: int, token_width: int) -> tuple[bytes, bytes]:
        """The stream's schema (empty after the first part), and the part as a record batch."""
        kept = self._kept(part, first_row)
        arrays, fields, head = [kept.column(i) for i in range(kept.num_columns)], list(kept.schema), b""
        if self._schema is None:
            self._check_names(kept.schema.names)
        for name, array in self._added(part, *self._widths(width, token_width)):
            arrays.append(array)
            fields.append(pa.field(name, array.type))
        if self._schema is None:
            space = next((group.vectors.space for group in part if group.vectors is not None), "")
            facts = msgspec.json.encode({**self._facts, "space": space})
            self._schema = pa.schema(fields, {**(kept.schema.metadata or {}), METADATA: facts})
            head = self._schema.serialize().to_pybytes()
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        return head, batch.serialize().to_pybytes()

    def _check_names(self, kept: Sequence[str]) -> None:
        for name in (*self._job.kinds, ERROR):
            if self._job.name_of(name) in kept:
                raise BulkFailed(f"IN already has a column {self._job.name_of(name)!r}; set --output-column PREFIX.")

    def _widths(self, width: int, token_width: int) -> tuple[int, int]:
        """The widths of dense and token vectors; of the schema if it exists, because a part may have no vectors."""
        if self._schema is None:
            return width, token_width
        kinds = {name: self._schema.field(self._job.name_of(name)).type for name in self._job.kinds}
        dense, colbert = kinds.get("dense"), kinds.get("colbert")
        return (
            dense.list_size if dense is not None else 0,
            colbert.value_type.list_size if colbert is not None else 0,
        )

    def _kept(self, part: Sequence[EmbeddedRows], first_row: int) -> RecordBatch:
        """The input's columns that OUT keeps."""
        columns = [group.rows.columns for group in part]
        if isinstance(columns[0], pa.RecordBatch):
            return pa.Table.from_batches(columns).combine_chunks().to_batches()[0]
        rows = [row for mappings in columns for row in mappings]
        names = {self._job.name_of(name) for name in (*self._job.kinds, ERROR)}
        if self._schema is None:
            kept = pa.schema(_fields_of(rows, as_text=self._job.columns_as_text))
        else:
            kept = pa.schema([field for field in self._schema if field.name not in names])
        return _batch_of(rows, kept, first_row)

    def _added(self, part: Sequence[EmbeddedRows], width: int, token_width: int) -> Iterator[tuple[str, Any]]:
        errors = errors_of(part)
        failed = np.array([error is not None for error in errors])
        numbers = self._job.numbers
        for kind in self._job.kinds:
            name = self._job.name_of(kind)
            if kind == "dense":
                rows = dense_rows(part, width, NUMPY_DTYPES[numbers])
                yield (
                    name,
                    pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), width, mask=pa.array(failed)),
                )
            elif kind == "sparse":
                yield name, _sparse_column(each_row(part, "sparse"), failed)
            else:
                dtype = "f2" if numbers == "float16" else "f4"
                yield name, _token_vectors_column(each_row(part, "colbert"), failed, token_width, dtype)
        yield self._job.name_of(ERROR), pa.array(errors, pa.string())

    def finish(self, data: Path, whole: Path) -> Path:
        with data.open("ab") as file:
            file.write(END_OF_STREAM)
        with pa.OSFile(str(data)) as source:  # a memory map would count as this process's memory
            stream = pa.ipc.open_stream(source)
            drop = None if self._job.on_error == "null" else self._job.name_of(ERROR)
            names = [name for name in stream.schema.names if name != drop]
            schema = pa.schema([stream.schema.field(name) for name in names], stream.schema.metadata)
            batches = (batch.select(names).replace_schema_metadata(schema.metadata) for batch in stream)
            if self._job.output_format == "parquet":
                with self._parquet_writer(whole, schema) as writer:
                    for table in _row_groups(batches):
                        writer.write_table(table, row_group_size=table.num_rows)
            else:
                new = pa.ipc.new_file if self._job.output_format == "arrow" else pa.ipc.new_stream
                with new(str(whole), schema) as writer:
                    for batch in batches:
                        writer.write_batch(batch)
        return whole

    def _parquet_writer(self, whole: Path, schema: Any) -> pq.ParquetWriter:
        added = {self._job.name_of(name) for name in self._job.kinds}
        dictionaries = [
            field.name for field in schema if field.name not in added and not pa.types.is_nested(field.type)
        ]
        return pq.ParquetWriter(whole, schema, compression="zstd", use_dictionary=dictionaries or False)


def _row_groups(batches: Iterable[RecordBatch]) -> Iterator[Any]:
    """Join batches into tables, each the size of one row group."""
    held: list[RecordBatch] = []
    for batch in batches:
        held.append(batch)
        rows, size = sum(each.num_rows for each in held), sum(each.nbytes for each in held)
        if size >= ROW_GROUP_BYTES or rows >= ROW_GROUP_ROWS:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)


def _sparse_column(vectors: Sequence[Sparse | None], failed: Array) -> Any:
    offsets = _offsets([0 if vector is None else len(vector.indices) for vector in vectors])
    some = [vector for vector in vectors if vector is not None]
    indices = np.concatenate([vector.indices for vector in some] or [np.zeros(0, np.int32)]).astype(np.uint32)
    values = np.concatenate([vector.values for vector in some] or [np.zeros(0, np.float32)])
    pairs = pa.StructArray.from_arrays([pa.array(indices), pa.array(values)], ["index", "value"])
    return pa.ListArray.from_arrays(offsets, pairs, mask=pa.array(failed))


def _token_vectors_column(vectors: Sequence[Array | None], failed: Array, width: int, dtype: str) -> Any:
    offsets = _offsets([0 if vector is None else len(vector) for vector in vectors])
    some = [vector for vector in vectors if vector is not None and len(vector)]
    numbers = np.concatenate(some).astype(dtype) if some else np.zeros((0, width), dtype)
    rows = pa.FixedSizeListArray.from_arrays(pa.array(numbers.reshape(-1)), width)
    return pa.ListArray.from_arrays(offsets, rows, mask=pa.array(failed))


def _offsets(lengths: Sequence[int]) -> Any:
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))  # (N + 1,)


# --- columns from mappings -------------------------------------------------------------------------------------


def _fields_of(rows: Sequence[Mapping[str, Any]], *, as_text: bool) -> list[Any]:
    """The fields of the columns in `rows`, the first part. Lists, objects and mixed types are strings of JSON."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [pa.field(name, pa.string() if as_text else _type_of([row.get(name) for row in rows])) for name in names]


def _type_of(values: Sequence[Any]) -> Any:
    types = {type(value) for value in values} - {type(None)}
    if types == {bool}:
        return pa.bool_()
    if types == {int} and all(-(2**63) <= (value or 0) < 2**63 for value in values):
        return pa.int64()
    return pa.float64() if types in ({float}, {int, float}) else pa.string()


def _batch_of(rows: Sequence[Mapping[str, Any]], schema: Any, first_row: int) -> RecordBatch:
    known = set(schema.names)
    for index, row in enumerate(rows):
        if not row.keys() <= known:
            new = next(name for name in row if name not in known)
            raise BulkFailed(
                f"Row {first_row + index}: column {new!r} is not in the first rows, which determine the columns of a "
                "table; JSON Lines (OUT.jsonl) accept any columns"
            )
    return pa.RecordBatch.from_arrays([_column(rows, field, first_row) for field in schema], schema=schema)


def _column(rows: Sequence[Mapping[str, Any]], field: Any, first_row: int) -> Any:
    """The column of this field. A string column accepts any value, as JSON; a number column accepts numbers only."""
    values = [row.get(field.name) for row in rows]
    if pa.types.is_string(field.type):
        values = [_json_text(value) for value in values]
    elif pa.types.is_floating(field.type):
        values = [float(str(value)) if _is_small_integer(value) else value for value in values]
    for index, value in enumerate(values):
        if value is not None and not _fits(value, field.type):
            raise BulkFailed(
                f"Row {first_row + index}: `{field.name}` is {type(value).__name__}, but {field.type} in the first "
                "rows; --columns-as-text writes such columns as text"
            )
    return pa.array(values, field.type)


def _json_text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else msgspec.json.encode(value).decode()


def _is_small_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53


def _fits(value: object, kind: Any) -> bool:
    if pa.types.is_boolean(kind):
        return isinstance(value, bool)
    if pa.types.is_integer(kind):
        return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    if pa.types.is_floating(kind):
        return isinstance(value, float)
    return True
