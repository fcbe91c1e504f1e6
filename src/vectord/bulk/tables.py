"""Parquet and Arrow as Rows, and parts as Arrow. The one file of bulk/ that imports pyarrow, an extra. Runs in threads.

A part is written as one record batch of an Arrow stream, which can grow by appending. OUT is made of it at the end, a
few batches at a time: so Parquet is encoded once, in row groups of a size that readers like.

    dense      fixed_size_list<float|halffloat|int8|uint8>[D]
    sparse     list<struct<index: uint32, value: float>>
    colbert    list<fixed_size_list<float|halffloat>[C]>, a vector a token
    error      string, only with --on-error null: why the row has no vectors
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vectord.bulk.embedder import without_place
from vectord.bulk.failures import BulkFailed
from vectord.bulk.inputs import Source, open_bytes, unpacking_failed
from vectord.bulk.job import Job
from vectord.bulk.rows import Answer, Array, Embedded, NoText, Rows, dense_rows, each_row, errors_of
from vectord.bulk.text_rows import Limits, missing, text_column, text_of
from vectord.errors import ConfigError
from vectord.schema import Sparse, VectorKind

ERROR = "error"
METADATA = b"vectord"
READ_BYTES = 8 * 2**20  # of a table decoded at once
ROW_GROUP_BYTES = 64 * 2**20  # and at most 131,072 rows
ROW_GROUP_ROWS = 131_072
END = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # of an Arrow stream
NUMPY_DTYPES = {"float32": "f4", "float16": "f2", "int8": "i1", "uint8": "u1", "ubinary": "u1"}
Batch = Any  # pyarrow.RecordBatch: pyarrow ships no types


# --- reading --------------------------------------------------------------------------------------------------


def read_tables(source: Source, column: str | None, limits: Limits) -> Iterator[Rows]:
    """All rows of all files, whose columns must be the same. Positions are rows. Raises BulkFailed, ConfigError."""
    schema = None
    position = 0
    for path in source.files() if source.path is not None else [None]:
        try:
            for batch in _batches(path, source):
                if schema is None:
                    schema = batch.schema
                    column = _column_of(schema, column)
                elif not batch.schema.equals(schema):
                    raise BulkFailed(f"{path} has other columns than the file before it")
                for rows in _cut(batch, str(column), limits):
                    position += len(rows)
                    yield Rows(rows.texts, rows.columns, position, rows.columns.nbytes)
        except (pa.ArrowException, OSError) as cause:
            raise unpacking_failed(path, cause) from cause


def count_rows(source: Source) -> int | None:
    """Of all files; None where that is known only by reading them."""
    if source.format != "parquet":
        return None
    try:
        return sum(int(pq.read_metadata(path).num_rows) for path in source.files())
    except (pa.ArrowException, OSError) as cause:
        raise ConfigError(f"IN: {cause}") from None


def _batches(path: Path | None, source: Source) -> Iterator[Batch]:
    if source.format == "parquet":
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=2**20) as file:
            rows = max(1, file.metadata.num_rows)
            size = sum(file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups))
            at_once = max(1, min(2048, READ_BYTES * rows // max(1, size)))
            yield from map(_plain, file.iter_batches(batch_size=at_once, use_threads=False))
        return
    unpacked, _ = open_bytes(path)
    with unpacked:
        if unpacked.seekable() and path is not None:
            is_file = unpacked.read(6) == b"ARROW1"
            unpacked.seek(0)
        else:
            is_file = False
        if is_file:
            file = pa.ipc.open_file(unpacked)
            yield from (_plain(file.get_batch(i)) for i in range(file.num_record_batches))
        else:
            yield from map(_plain, pa.ipc.open_stream(unpacked))


def _plain(batch: Batch) -> Batch:
    """Checked, and without dictionaries, which a stream that grows has no place for."""
    batch.validate(full=True)
    for i, field in enumerate(batch.schema):
        if pa.types.is_dictionary(field.type):
            values = batch.column(i).dictionary_decode()
            batch = batch.set_column(i, field.with_type(values.type), values)
    return batch


def _column_of(schema: Any, column: str | None) -> str:
    if len(set(schema.names)) != len(schema.names):
        raise ConfigError("IN: two columns have one name")
    strings = [field.name for field in schema if _is_string(field.type)]
    column = column or text_column(schema.names, strings)
    if column not in schema.names:
        raise missing(column, schema.names)
    return column


def _is_string(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _cut(batch: Batch, column: str, limits: Limits) -> Iterator[Rows]:
    values = batch.column(batch.schema.get_field_index(column)).to_pylist()
    texts: list[str | NoText] = [text_of(value, column) for value in values]
    start = characters = 0
    for i, text in enumerate(texts):
        more = len(text) if isinstance(text, str) else 0
        if i > start and (i - start == limits.rows or characters + more > limits.characters):
            yield Rows(texts[start:i], batch[start:i], 0, 0)
            start, characters = i, 0
        characters += more
    if start < len(texts):
        yield Rows(texts[start:], batch[start:], 0, 0)


def to_mappings(batch: Batch) -> list[Mapping[str, Any]]:
    """Its rows, as outputs.py writes them in JSON."""
    rows: list[Mapping[str, Any]] = batch.to_pylist()
    return rows


# --- a part as a record batch ---------------------------------------------------------------------------------


class ArrowOutput:
    """Parts as record batches of one schema, which the first part settles."""

    def __init__(self, job: Job, facts: Mapping[str, Any]) -> None:
        self._job = job
        self._facts = facts
        self._schema: Any = None

    def resume(self, data: Path) -> None:
        """Go on with the columns that the parts in `data` have."""
        with pa.memory_map(str(data)) as file:
            self._schema = pa.ipc.open_stream(file).schema

    def part(self, part: Sequence[Embedded], first_row: int, width: int, token_width: int) -> tuple[bytes, bytes]:
        kept = self._kept(part, first_row)
        head = b""
        if self._schema is None:
            self._check_names(kept.schema.names)
        arrays = [kept.column(i) for i in range(kept.num_columns)]
        fields = list(kept.schema)
        for name, array in self._added(part, *self._widths(width, token_width)):
            arrays.append(array)
            fields.append(pa.field(name, array.type))
        if self._schema is None:
            space = next((one.answer.space for one in part if one.answer is not None), "")
            facts = msgspec.json.encode({**self._facts, "space": space})
            self._schema = pa.schema(fields, {**(kept.schema.metadata or {}), METADATA: facts})
            head = self._schema.serialize().to_pybytes()
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        return head, batch.serialize().to_pybytes()

    def _check_names(self, kept: Sequence[str]) -> None:
        for name in (*self._job.kinds, ERROR):
            if self._job.name_of(name) in kept:
                raise BulkFailed(f"IN has a column {self._job.name_of(name)!r} already; say --output-column PREFIX.")

    def _widths(self, width: int, token_width: int) -> tuple[int, int]:
        """Those of the first part, once there is one: a part may have no vectors."""
        if self._schema is None:
            return width, token_width
        kinds = {name: self._schema.field(self._job.name_of(name)).type for name in self._job.kinds}
        dense, colbert = kinds.get("dense"), kinds.get("colbert")
        return (
            dense.list_size if dense is not None else 0,
            colbert.value_type.list_size if colbert is not None else 0,
        )

    def _kept(self, part: Sequence[Embedded], first_row: int) -> Batch:
        columns = [one.rows.columns for one in part]
        if isinstance(columns[0], pa.RecordBatch):
            return pa.Table.from_batches(columns).combine_chunks().to_batches()[0]
        rows = [row for some in columns for row in some]
        names = {self._job.name_of(name) for name in (*self._job.kinds, ERROR)}
        if self._schema is None:
            kept = pa.schema(_fields(rows, as_text=self._job.columns_as_text))
        else:
            kept = pa.schema([field for field in self._schema if field.name not in names])
        return _from_mappings(rows, kept, first_row)

    def _added(self, part: Sequence[Embedded], width: int, token_width: int) -> Iterator[tuple[str, Any]]:
        errors = errors_of(part)
        failed = np.array([error is not None for error in errors])
        numbers = self._job.numbers
        for kind in self._job.kinds:
            name = self._job.name_of(kind)
            if kind == "dense":
                rows = dense_rows(part, width, NUMPY_DTYPES[numbers])
                values = pa.array(rows.reshape(-1))
                yield name, pa.FixedSizeListArray.from_arrays(values, width, mask=pa.array(failed))
            elif kind == "sparse":
                yield name, _sparse(each_row(part, "sparse"), failed)
            else:
                dtype = "f2" if numbers == "float16" else "f4"
                yield name, _token_vectors(each_row(part, "colbert"), failed, token_width, dtype)
        yield self._job.name_of(ERROR), pa.array(errors, pa.string())

    # --- OUT --------------------------------------------------------------------------------------------------

    def finish(self, data: Path, whole: Path) -> Path:
        """`whole`, written anew from the parts in `data`, whose end is still missing."""
        with data.open("ab") as file:
            file.write(END)
        with pa.OSFile(str(data)) as source:  # a memory map of all of it would count as this process's memory
            stream = pa.ipc.open_stream(source)
            drop = None if self._job.on_error == "null" else self._job.name_of(ERROR)
            names = [name for name in stream.schema.names if name != drop]
            schema = pa.schema([stream.schema.field(name) for name in names], stream.schema.metadata)
            with self._writer(whole, schema) as write:
                for batch in stream:
                    write(batch.select(names).replace_schema_metadata(schema.metadata))
        return whole

    def _writer(self, whole: Path, schema: Any) -> _Writer:
        if self._job.output_format == "parquet":
            own = {self._job.name_of(name) for name in self._job.kinds}
            dictionaries = [
                field.name for field in schema if field.name not in own and not pa.types.is_nested(field.type)
            ]
            return _Writer(
                pq.ParquetWriter(whole, schema, compression="zstd", use_dictionary=dictionaries or False), grouped=True
            )
        new = pa.ipc.new_file if self._job.output_format == "arrow" else pa.ipc.new_stream
        return _Writer(new(str(whole), schema), grouped=False)


class _Writer:
    """Batches to a file; grouped: into row groups of many batches."""

    def __init__(self, writer: Any, *, grouped: bool) -> None:
        self._writer = writer
        self._grouped = grouped
        self._held: list[Batch] = []

    def __enter__(self) -> Callable[[Batch], None]:
        return self._write

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if kind is None:
                self._empty()
        finally:
            self._writer.close()

    def _write(self, batch: Batch) -> None:
        self._held.append(batch)
        rows, size = sum(one.num_rows for one in self._held), sum(one.nbytes for one in self._held)
        if not self._grouped or size >= ROW_GROUP_BYTES or rows >= ROW_GROUP_ROWS:
            self._empty()

    def _empty(self) -> None:
        if not self._held:
            return
        table = pa.Table.from_batches(self._held)
        if self._grouped:
            self._writer.write_table(table, row_group_size=table.num_rows)
        else:
            self._writer.write_table(table)
        self._held = []


def _sparse(vectors: Sequence[Sparse | None], failed: Array) -> Any:
    offsets = _offsets([0 if vector is None else len(vector.indices) for vector in vectors])
    some = [vector for vector in vectors if vector is not None]
    indices = np.concatenate([vector.indices for vector in some] or [np.zeros(0, np.int32)]).astype(np.uint32)
    values = np.concatenate([vector.values for vector in some] or [np.zeros(0, np.float32)])
    pairs = pa.StructArray.from_arrays([pa.array(indices), pa.array(values)], ["index", "value"])
    return pa.ListArray.from_arrays(offsets, pairs, mask=pa.array(failed))


def _token_vectors(vectors: Sequence[Array | None], failed: Array, width: int, dtype: str) -> Any:
    offsets = _offsets([0 if vector is None else len(vector) for vector in vectors])
    some = [vector for vector in vectors if vector is not None and len(vector)]
    numbers = np.concatenate(some).astype(dtype) if some else np.zeros((0, width), dtype)
    rows = pa.FixedSizeListArray.from_arrays(pa.array(numbers.reshape(-1)), width)
    return pa.ListArray.from_arrays(offsets, rows, mask=pa.array(failed))


def _offsets(lengths: Sequence[int]) -> Any:
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))  # (N + 1,)


# --- a server's answer ----------------------------------------------------------------------------------------


def read_answer(body: bytes, texts: int, kinds: Sequence[VectorKind], counts: Mapping[str, Any]) -> Answer:
    """counts: what stands in the answer's headers. Raises ValueError for bytes that are no such answer."""
    try:
        batch = pa.ipc.open_stream(body).read_next_batch()
        batch.validate(full=True)  # offsets that point elsewhere would be followed
    except (pa.ArrowException, OSError, StopIteration) as cause:
        raise ValueError("no Arrow stream") from cause
    if batch.num_rows != texts:
        raise ValueError("another number of vectors than of texts")
    columns = {name: batch.column(name) for name in batch.schema.names}
    errors = enumerate(columns["error"].to_pylist())
    return Answer(
        dense=_matrix(columns["dense"]) if "dense" in kinds else None,
        sparse=_each_sparse(columns["sparse"]) if "sparse" in kinds else None,
        colbert=_each_matrix(columns["colbert"]) if "colbert" in kinds else None,
        failures={i: without_place(message, i) for i, message in errors if message is not None},
        **counts,
    )


def _matrix(column: Any) -> Array:
    """Lists of one length: (n, D)."""
    return np.asarray(column.flatten()).reshape(len(column), column.type.list_size)


def _each_matrix(column: Any) -> list[Array]:
    return np.split(_matrix(column.values), np.asarray(column.offsets)[1:-1])


def _each_sparse(column: Any) -> list[Sparse]:
    indices, values = column.field("indices"), column.field("values")
    bounds = np.asarray(indices.offsets)[1:-1]
    pairs = zip(np.split(np.asarray(indices.values), bounds), np.split(np.asarray(values.values), bounds), strict=True)
    return [Sparse(*pair) for pair in pairs]


# --- rows of JSON Lines, CSV and lines as columns -------------------------------------------------------------


def _fields(rows: Sequence[Mapping[str, Any]], *, as_text: bool) -> list[Any]:
    """What the first part's rows say. Lists, objects and mixed columns are kept as JSON in a string."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [_field(name, {type(row.get(name)) for row in rows} - {type(None)}, rows, as_text) for name in names]


def _field(name: str, types: set[type], rows: Sequence[Mapping[str, Any]], as_text: bool) -> Any:
    if not as_text and types == {bool}:
        return pa.field(name, pa.bool_())
    if not as_text and types == {int} and all(-(2**63) <= (row.get(name) or 0) < 2**63 for row in rows):
        return pa.field(name, pa.int64())
    if not as_text and types in ({float}, {int, float}):
        return pa.field(name, pa.float64())
    return pa.field(name, pa.string())


def _from_mappings(rows: Sequence[Mapping[str, Any]], schema: Any, first_row: int) -> Batch:
    known = set(schema.names)
    for place, row in enumerate(rows):
        if not row.keys() <= known:
            new = next(name for name in row if name not in known)
            raise BulkFailed(
                f"row {first_row + place}: the column {new!r} is none of the first rows', and a table's columns are "
                "those; JSON Lines (OUT.jsonl) holds any"
            )
    return pa.RecordBatch.from_arrays([_column(rows, field, first_row) for field in schema], schema=schema)


def _column(rows: Sequence[Mapping[str, Any]], field: Any, first_row: int) -> Any:
    """A column of strings takes anything, as JSON; one of numbers nothing else."""
    values = [row.get(field.name) for row in rows]
    if pa.types.is_string(field.type):
        values = [_json_text(value) for value in values]
    elif pa.types.is_floating(field.type):
        values = [float(str(value)) if _is_number(value) else value for value in values]
    for place, value in enumerate(values):
        if value is not None and not _fits(value, field.type):
            raise BulkFailed(
                f"Row {first_row + place}: `{field.name}` is {type(value).__name__}, in the first rows {field.type}; "
                "--columns-as-text keeps such columns as text"
            )
    return pa.array(values, field.type)


def _json_text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else msgspec.json.encode(value).decode()


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53


def _fits(value: object, kind: Any) -> bool:
    if pa.types.is_boolean(kind):
        return isinstance(value, bool)
    if pa.types.is_integer(kind):
        return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    if pa.types.is_floating(kind):
        return isinstance(value, float)
    return True
