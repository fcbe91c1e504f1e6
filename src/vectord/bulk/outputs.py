"""Parts -> the bytes that the data file grows by, and OUT made of that file. Runs in a thread.

JSON Lines and .npy here; Parquet and Arrow in arrow/.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import msgspec
import numpy as np
import orjson
import zstandard

from vectord.bulk.failures import BulkFailed
from vectord.bulk.inputs import format_of_name
from vectord.bulk.job import Compression, Job, OutputFormat
from vectord.bulk.rows import Embedded, dense_rows, each_row, errors_of
from vectord.errors import ConfigError

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
WHOLE = "whole"  # in OUT.parts, where OUT is written anew at the end
NPY_HEADER_BYTES = 128  # room for any number of rows
ERROR = "error"


class Output(Protocol):
    def resume(self, data: Path) -> None:
        """Go on behind the parts in `data`."""
        ...

    def part(self, part: Sequence[Embedded], first_row: int, width: int, token_width: int) -> tuple[bytes, bytes]:
        """What the data file grows by: what stands before all rows, b"" but of the first part, and the rows.

        first_row: of the whole job, from 0. width, token_width: numbers of a dense vector and of one of ColBERT's.
        Raises BulkFailed naming the row.
        """
        ...

    def finish(self, data: Path, whole: Path) -> Path:
        """The file that OUT will be: `data` itself, or `whole`, which is made of it. May be called again after a kill,
        `data` being cut to its parts."""
        ...


def format_of_output(out: Path, said: str | None) -> tuple[OutputFormat, Compression | None]:
    """Raises ConfigError for a name that says no format that is written here."""
    suffix, compression = format_of_name(out)
    found = SUFFIXES.get("." + said if said else suffix)
    if found is None:
        raise ConfigError(f"OUT: its name must end in one of {', '.join(SUFFIXES)}, or say --output-format")
    if compression and found != "jsonl":
        raise ConfigError("OUT: only JSON Lines are written as .gz or .zst; the other formats compress by themselves")
    return found, compression


def check_output(job: Job) -> None:
    """Raises ConfigError for what this format has no place for."""
    if job.output_format in {"parquet", "arrow", "arrows"} and find_spec("pyarrow") is None:
        raise ConfigError(f"OUT: {job.output_format} needs pyarrow; it comes with pip install 'vectord[arrow]'")
    if job.output_format == "npy" and (job.kinds != ("dense",) or job.on_error == "null"):
        raise ConfigError(
            "OUT: .npy holds dense vectors alone, one for each row: no other --outputs, no --on-error null"
        )


def output_of(job: Job, facts: Mapping[str, Any]) -> Output:
    """facts: of the model, written into a table's metadata."""
    if job.output_format == "jsonl":
        return JsonLines(job)
    if job.output_format == "npy":
        return Npy(job)
    from vectord.bulk.arrow.output import ArrowOutput  # noqa: PLC0415 - pyarrow, an extra

    return ArrowOutput(job, facts)


class JsonLines:
    """An object a row: its columns as they were, and the vectors. Compressed, each part is a member of its own."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def resume(self, data: Path) -> None:
        pass

    def part(self, part: Sequence[Embedded], first_row: int, width: int, token_width: int) -> tuple[bytes, bytes]:
        columns = [self._mappings(one.rows.columns) for one in part]
        rows = [row for some in columns for row in some]
        errors = errors_of(part)
        vectors = {kind: self._vectors(kind, part, width) for kind in self._job.kinds}
        added = {self._job.name_of(name) for name in (*vectors, ERROR)}
        lines = []
        for place, row in enumerate(rows):
            if not added.isdisjoint(row):
                raise BulkFailed(
                    f"row {first_row + place} has a column of the vectors' name; say --output-column PREFIX"
                )
            failed = errors[place] is not None
            new = {self._job.name_of(kind): None if failed else made[place] for kind, made in vectors.items()}
            if failed:
                new[self._job.name_of(ERROR)] = errors[place]
            lines.append(_joined(self._encoded(row), orjson.dumps(new, option=orjson.OPT_SERIALIZE_NUMPY)))
        return b"", self._packed(b"".join(lines))

    def finish(self, data: Path, whole: Path) -> Path:
        return data

    def _mappings(self, columns: Any) -> Sequence[Mapping[str, Any]]:
        if isinstance(columns, list):
            return columns
        from vectord.bulk.arrow.reading import to_mappings  # noqa: PLC0415 - it came from there

        return to_mappings(columns)

    def _encoded(self, row: Mapping[str, Any]) -> bytes:
        return msgspec.json.encode(row, enc_hook=str)

    def _vectors(self, kind: str, part: Sequence[Embedded], width: int) -> Sequence[Any]:
        if kind == "dense":
            rows = dense_rows(part, width, self._job.numbers if self._job.numbers != "ubinary" else "uint8")
            return [np.ascontiguousarray(row) for row in rows]
        if kind == "sparse":
            return [
                None if one is None else {"indices": one.indices.tolist(), "values": one.values.tolist()}
                for one in each_row(part, kind)
            ]
        return [None if one is None else np.ascontiguousarray(one, np.float32) for one in each_row(part, kind)]

    def _packed(self, lines: bytes) -> bytes:
        if self._job.output_compression == "gz":
            return gzip.compress(lines, 6, mtime=0)
        if self._job.output_compression == "zst":
            return zstandard.ZstdCompressor().compress(lines)
        return lines


def _joined(kept: bytes, new: bytes) -> bytes:
    return (new if kept == b"{}" else kept[:-1] + b"," + new[1:]) + b"\n"


class Npy:
    """The dense vectors alone, (rows, D), as numpy.load(mmap_mode="r") reads them."""

    def __init__(self, job: Job) -> None:
        self._dtype = np.dtype("uint8" if job.numbers == "ubinary" else job.numbers)
        self._width = 0

    def resume(self, data: Path) -> None:
        with data.open("rb") as file:
            header = file.read(NPY_HEADER_BYTES).decode("latin-1")
        self._width = int(header.rpartition(",")[0].rpartition(",")[2].strip(" )"))

    def part(self, part: Sequence[Embedded], first_row: int, width: int, token_width: int) -> tuple[bytes, bytes]:
        head = b"" if self._width else _npy_header(0, width, self._dtype)
        self._width = width
        return head, dense_rows(part, width, self._dtype).tobytes()

    def finish(self, data: Path, whole: Path) -> Path:
        """The header, rewritten in place with the number of rows: doing it twice is doing it once."""
        row_bytes = self._width * self._dtype.itemsize
        rows = (data.stat().st_size - NPY_HEADER_BYTES) // row_bytes
        with data.open("r+b") as file:
            file.write(_npy_header(rows, self._width, self._dtype))
            file.flush()
            os.fsync(file.fileno())
        return data


def _npy_header(rows: int, width: int, dtype: np.dtype[Any]) -> bytes:
    words = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': ({rows}, {width}), }}"
    room = NPY_HEADER_BYTES - 10
    return b"\x93NUMPY\x01\x00" + room.to_bytes(2, "little") + words.ljust(room - 1).encode() + b"\n"
