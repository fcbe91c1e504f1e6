"""Output formats: how a part is encoded, and how OUT is made of all parts. Runs in a thread.

JSON Lines and .npy are here, Parquet and Arrow in arrow_output.py.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import orjson
import zstandard

from vectord.bulk.inputs import format_of_name
from vectord.bulk.job import ERROR, BulkFailed, BulkJob, Compression, OutputFormat
from vectord.bulk.rows import EmbeddedRows, dense_rows, each_row, errors_of
from vectord.errors import ConfigError, installing

SUFFIXES: Mapping[str, OutputFormat] = MappingProxyType(
    {
        ".parquet": "parquet",
        ".arrow": "arrow",
        ".feather": "arrow",
        ".ipc": "arrow",
        ".arrows": "arrows",
        ".jsonl": "jsonl",
        ".ndjson": "jsonl",
        ".npy": "npy",
    }
)
WHOLE = "whole"  # the file in OUT.parts in which OUT is built at the end
NPY_HEADER_BYTES = 128  # enough for any number of rows


class BulkOutput:
    """How parts are encoded in one format. By default the data file is OUT, and the parts are independent."""

    def resume(self, data: Path) -> None:
        """Continue after the parts in `data`."""

    def part(self, part: Sequence[EmbeddedRows], first_row: int, width: int, token_width: int) -> tuple[bytes, bytes]:
        """The bytes to append to the data file: the header, b"" after the first part, and the rows.

        first_row: index within the job. width, token_width: of a dense vector and of a ColBERT vector. Raises
        BulkFailed with the row at fault.
        """
        raise NotImplementedError

    def finish(self, data: Path, whole: Path) -> Path:
        """The finished file: `data` itself, or `whole`, made of it. Can be repeated after an interruption."""
        return data


def format_of_output(out: Path, option: str | None) -> tuple[OutputFormat, Compression | None]:
    """From --output-format, or the name. Raises ConfigError for an unknown format."""
    suffix, compression = format_of_name(out)
    found = SUFFIXES.get("." + option if option else suffix)
    if found is None:
        raise ConfigError(f"OUT: its name must end in one of {', '.join(SUFFIXES)}, or set --output-format")
    if compression and found != "jsonl":
        raise ConfigError("OUT: only JSON Lines are written as .gz or .zst; the other formats compress by themselves")
    return found, compression


def check_output(job: BulkJob) -> None:
    """Raises ConfigError if the format cannot hold the job's columns, or needs pyarrow and it is missing."""
    if job.output_format in {"parquet", "arrow", "arrows"} and find_spec("pyarrow") is None:
        raise ConfigError(f"OUT: {job.output_format} needs pyarrow; run {installing('arrow')}")
    if job.output_format == "npy" and (job.kinds != ("dense",) or job.on_error == "null"):
        raise ConfigError(
            "OUT: .npy holds only dense vectors, one for each row: no other --outputs, no --on-error null"
        )


def output_of(job: BulkJob, facts: Mapping[str, Any]) -> BulkOutput:
    """facts: of the model, for the metadata of a table."""
    if job.output_format == "jsonl":
        return JsonLinesOutput(job)
    if job.output_format == "npy":
        return NpyOutput(job)
    from vectord.bulk.arrow_output import ArrowOutput  # noqa: PLC0415 - pyarrow, an extra

    return ArrowOutput(job, facts)


class JsonLinesOutput(BulkOutput):
    """One object for each row: its columns and its vectors. If compressed, each part is a member of its own."""

    def __init__(self, job: BulkJob) -> None:
        self._job = job

    def part(self, part: Sequence[EmbeddedRows], first_row: int, width: int, token_width: int) -> tuple[bytes, bytes]:
        rows = [row for one in part for row in _mappings(one.rows.columns)]
        errors = errors_of(part)
        vectors = {kind: self._vectors(kind, part, width) for kind in self._job.kinds}
        added = {self._job.name_of(name) for name in (*vectors, ERROR)}
        lines = []
        for place, row in enumerate(rows):
            if not added.isdisjoint(row):
                raise BulkFailed(
                    f"row {first_row + place} has a column with the name of an added one; set --output-column PREFIX"
                )
            failed = errors[place] is not None
            new = {self._job.name_of(kind): None if failed else made[place] for kind, made in vectors.items()}
            if failed:
                new[self._job.name_of(ERROR)] = errors[place]
            lines.append(_joined(msgspec.json.encode(row, enc_hook=str), new))
        return b"", self._compressed(b"".join(lines))

    def _vectors(self, kind: str, part: Sequence[EmbeddedRows], width: int) -> Sequence[Any]:
        if kind == "dense":
            rows = dense_rows(part, width, self._job.numbers if self._job.numbers != "ubinary" else "uint8")
            return [np.ascontiguousarray(row) for row in rows]
        if kind == "sparse":
            return [
                None if one is None else {"indices": one.indices.tolist(), "values": one.values.tolist()}
                for one in each_row(part, kind)
            ]
        return [None if one is None else np.ascontiguousarray(one, np.float32) for one in each_row(part, kind)]

    def _compressed(self, lines: bytes) -> bytes:
        if self._job.output_compression == "gz":
            return gzip.compress(lines, 6, mtime=0)
        if self._job.output_compression == "zst":
            return zstandard.ZstdCompressor().compress(lines)
        return lines


def _mappings(columns: Any) -> Sequence[Mapping[str, Any]]:
    """The rows of a pyarrow.RecordBatch as mappings."""
    rows: Sequence[Mapping[str, Any]] = columns if isinstance(columns, list) else columns.to_pylist()
    return rows


def _joined(row: bytes, added: Mapping[str, Any]) -> bytes:
    new = orjson.dumps(added, option=orjson.OPT_SERIALIZE_NUMPY)
    return (new if row == b"{}" else row[:-1] + b"," + new[1:]) + b"\n"


class NpyOutput(BulkOutput):
    """Only the dense vectors, (rows, D), for numpy.load(mmap_mode="r")."""

    def __init__(self, job: BulkJob) -> None:
        self._dtype = np.dtype("uint8" if job.numbers == "ubinary" else job.numbers)
        self._width = 0

    def resume(self, data: Path) -> None:
        with data.open("rb") as file:
            header = file.read(NPY_HEADER_BYTES).decode("latin-1")
        self._width = int(header.rpartition(",")[0].rpartition(",")[2].strip(" )"))

    def part(self, part: Sequence[EmbeddedRows], first_row: int, width: int, token_width: int) -> tuple[bytes, bytes]:
        head = b"" if self._width else _npy_header(0, width, self._dtype)
        self._width = width
        return head, dense_rows(part, width, self._dtype).tobytes()

    def finish(self, data: Path, whole: Path) -> Path:
        """Writes the number of rows into the header, which can be repeated."""
        row_bytes = self._width * self._dtype.itemsize
        rows = (data.stat().st_size - NPY_HEADER_BYTES) // row_bytes
        with data.open("r+b") as file:
            file.write(_npy_header(rows, self._width, self._dtype))
            file.flush()
            os.fsync(file.fileno())
        return data


def _npy_header(rows: int, width: int, dtype: np.dtype[Any]) -> bytes:
    fields = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': ({rows}, {width}), }}"
    length = NPY_HEADER_BYTES - 10
    return b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little") + fields.ljust(length - 1).encode() + b"\n"
