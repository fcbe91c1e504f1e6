"""Reads Parquet and Arrow files as Rows, in a thread."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from vectord.bulk.inputs import (
    InputFile,
    InputSource,
    missing_column,
    open_bytes,
    text_column,
    text_of,
    unreadable,
)
from vectord.bulk.job import BulkFailed, BulkJob, InputFormat, already_has
from vectord.bulk.rows import RowLimits, Rows
from vectord.errors import ConfigError

READ_BYTES = 8 * 2**20  # decoded at once
RecordBatch: TypeAlias = Any  # pyarrow.RecordBatch: pyarrow ships no types


def read_tables(source: InputSource, limits: RowLimits) -> Generator[Rows, None, None]:
    """All rows of all files, which must have the same columns."""
    schema, column = None, ""
    position = 0
    for file in [None] if source.is_stdin else source.files():
        try:
            for batch in _batches(file, source.format):
                if schema is None:
                    schema = batch.schema
                    column = _column_of(schema, source.job)
                elif not batch.schema.equals(schema):
                    raise BulkFailed(f"{file.name if file else 'IN'} has other columns than the file before it")
                for rows in _rows(batch, column, source.job).within(limits):
                    position += len(rows)
                    yield replace(rows, position=position, size_bytes=rows.columns.nbytes)
        except (pa.ArrowException, OSError) as cause:
            raise unreadable(file, cause) from cause


def count_rows(source: InputSource) -> int | None:
    """The number of rows of all files; None if it is unknown without reading them."""
    if source.format != "parquet":
        return None
    rows = 0
    for file in source.files():
        try:
            with file.open() as opened:
                rows += int(pq.read_metadata(opened).num_rows)
        except (pa.ArrowException, OSError) as cause:
            raise ConfigError(f"IN: {file.name}: {cause}") from None
    return rows


def _batches(file: InputFile | None, format: InputFormat) -> Iterator[RecordBatch]:
    unpacked, _ = open_bytes(file)
    with unpacked:
        if format == "parquet":
            with pq.ParquetFile(unpacked, pre_buffer=False, buffer_size=2**20) as opened:
                rows = max(1, opened.metadata.num_rows)
                size = sum(opened.metadata.row_group(i).total_byte_size for i in range(opened.metadata.num_row_groups))
                at_once = max(1, min(2048, READ_BYTES * rows // max(1, size)))
                yield from map(_plain, opened.iter_batches(batch_size=at_once, use_threads=False))
            return
        is_file = False
        if unpacked.seekable() and file is not None:
            is_file = unpacked.read(6) == b"ARROW1"
            unpacked.seek(0)
        if is_file:
            opened = pa.ipc.open_file(unpacked)
            yield from (_plain(opened.get_batch(i)) for i in range(opened.num_record_batches))
        else:
            yield from map(_plain, pa.ipc.open_stream(unpacked))


def _plain(batch: RecordBatch) -> RecordBatch:
    """`batch`, validated, without dictionaries: an Arrow stream that grows cannot contain them."""
    batch.validate(full=True)
    for i, field in enumerate(batch.schema):
        if pa.types.is_dictionary(field.type):
            values = batch.column(i).dictionary_decode()
            batch = batch.set_column(i, field.with_type(values.type), values)
    return batch


def _column_of(schema: Any, job: BulkJob) -> str:
    if len(set(schema.names)) != len(schema.names):
        raise ConfigError("IN: two columns have one name")
    is_string = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    strings = [field.name for field in schema if any(check(field.type) for check in is_string)]
    column = job.column or text_column(schema.names, strings, job)
    if column not in schema.names:
        raise missing_column(column, schema.names)
    return column


def _rows(batch: RecordBatch, column: str, job: BulkJob) -> Rows:
    values = batch.column(batch.schema.get_field_index(column)).to_pylist()
    return Rows([text_of(value, column, job) for value in values], batch, 0, 0, column)


def with_column(batch: RecordBatch, name: str, numbers: Sequence[int]) -> RecordBatch:
    """`batch` with a further column of int64. Raises BulkFailed if it has one of this name."""
    if name in batch.schema.names:
        raise already_has(name)
    return batch.append_column(name, pa.array(numbers, pa.int64()))


def with_texts(batch: RecordBatch, column: str, texts: Sequence[str | None]) -> RecordBatch:
    """`batch` with these texts in the column; unchanged if there is no text, as in a column of numbers."""
    if not any(text is not None for text in texts):
        return batch
    i = batch.schema.get_field_index(column)
    field = batch.schema.field(i)
    return batch.set_column(i, field, pa.array(texts, field.type))
