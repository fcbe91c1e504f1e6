"""Parts as Arrow, and OUT made of them. Called by outputs.py, in threads.

A part is written as one record batch of an Arrow stream, which can grow by appending. OUT is made of it at the end, a
few batches at a time: so Parquet is encoded once, in row groups of a size that readers like. The columns that are added
are those of vectors.py, and with --on-error null `error`, a string: why the row has no vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vectord.bulk.arrow.mappings import fields_of, from_mappings
from vectord.bulk.arrow.reading import Batch
from vectord.bulk.arrow.vectors import dense_column, sparse_column, token_vectors_column
from vectord.bulk.failures import BulkFailed
from vectord.bulk.job import Job
from vectord.bulk.rows import Embedded, dense_rows, each_row, errors_of

ERROR = "error"
METADATA = b"vectord"
ROW_GROUP_BYTES = 64 * 2**20  # and at most 131,072 rows
ROW_GROUP_ROWS = 131_072
END = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # of an Arrow stream
NUMPY_DTYPES = {"float32": "f4", "float16": "f2", "int8": "i1", "uint8": "u1", "ubinary": "u1"}


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
            kept = pa.schema(fields_of(rows, as_text=self._job.columns_as_text))
        else:
            kept = pa.schema([field for field in self._schema if field.name not in names])
        return from_mappings(rows, kept, first_row)

    def _added(self, part: Sequence[Embedded], width: int, token_width: int) -> Iterator[tuple[str, Any]]:
        errors = errors_of(part)
        failed = np.array([error is not None for error in errors])
        numbers = self._job.numbers
        for kind in self._job.kinds:
            name = self._job.name_of(kind)
            if kind == "dense":
                rows = dense_rows(part, width, NUMPY_DTYPES[numbers])
                yield name, dense_column(rows, failed)
            elif kind == "sparse":
                yield name, sparse_column(each_row(part, "sparse"), failed)
            else:
                dtype = "f2" if numbers == "float16" else "f4"
                yield name, token_vectors_column(each_row(part, "colbert"), failed, token_width, dtype)
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
