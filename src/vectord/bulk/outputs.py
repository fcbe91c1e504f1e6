"""Output formats: how a part is written, and how OUT is made of all parts. Runs in a thread.

JSON Lines and .npy are here, Parquet and Arrow in arrow_output.py.
"""

from __future__ import annotations

import gzip
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Protocol

import msgspec
import numpy as np
import orjson
import zstandard

from vectord.bulk.inputs import format_of_name
from vectord.bulk.job import ERROR, BulkFailed, BulkJob, Compression, OutputFormat
from vectord.bulk.rows import EmbeddedRows, Rows, dense_rows, each_row, errors_of
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
NPY_HEADER_BYTES = 128  # enough for any number of rows
COPY_BYTES = 4 * 2**20


class PartFile(Protocol):
    """A part that is being written, from its first row to its last."""

    def write(self, rows: Sequence[EmbeddedRows], first_row: int) -> None:
        """first_row: index in IN. Raises BulkFailed with the row at fault."""
        ...

    def close(self) -> None: ...


class BulkOutput(ABC):
    """How parts are encoded in one format, and joined. Each part is a complete file of the format."""

    suffix: str

    def begin(self, rows: Iterator[Rows]) -> Iterator[Rows]:
        """The rows of IN, unchanged. Called before `open`: the first ones may determine the columns."""
        return rows

    @abstractmethod
    def open(self, path: Path) -> PartFile: ...

    @abstractmethod
    def merge(self, parts: Sequence[Path], whole: Path) -> None:
        """Write one file with the rows of all parts."""


@dataclass(frozen=True, slots=True)
class VectorWidths:
    """The numbers of a vector, 0 for kinds without it. dense: bytes of a ubinary vector."""

    dense: int
    colbert: int  # of the vector of one token


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
    if job.output_format == "npy" and job.prefix:
        raise ConfigError("--output-column: .npy has no columns")
    if job.columns_as_text and job.output_format in {"jsonl", "npy"}:
        raise ConfigError(f"--columns-as-text: is for tables; the format of OUT is {job.output_format}")
    if job.output_format == "npy" and (job.kinds != ("dense",) or job.on_error == "null"):
        raise ConfigError(
            "OUT: .npy holds only dense vectors, one for each row: no other --outputs, no --on-error null"
        )


def output_of(job: BulkJob, widths: VectorWidths, facts: Mapping[str, Any]) -> BulkOutput:
    """facts: of the model, for the metadata of a table."""
    if job.output_format == "jsonl":
        return JsonLinesOutput(job, widths)
    if job.output_format == "npy":
        return NpyOutput(job, widths)
    from vectord.bulk.arrow_output import ArrowOutput  # noqa: PLC0415 - pyarrow, an extra

    return ArrowOutput(job, widths, facts)


class JsonLinesOutput(BulkOutput):
    """One object for each row: its columns and its vectors. Compressed files have one member for each write."""

    def __init__(self, job: BulkJob, widths: VectorWidths) -> None:
        self._job = job
        self._widths = widths
        self.suffix = f".jsonl.{job.output_compression}" if job.output_compression else ".jsonl"

    def open(self, path: Path) -> PartFile:
        return _BytesFile(path, self._lines)

    def merge(self, parts: Sequence[Path], whole: Path) -> None:
        with whole.open("wb") as file:
            for part in parts:
                _append(part, file)

    def _lines(self, rows: Sequence[EmbeddedRows], first_row: int) -> bytes:
        errors = errors_of(rows)
        vectors = {kind: self._vectors(kind, rows) for kind in self._job.kinds}
        added = {self._job.name_of(name) for name in (*vectors, ERROR)}
        lines = []
        columns = [one.rows.columns for one in rows]
        mappings = [some if isinstance(some, list) else some.to_pylist() for some in columns]  # of a RecordBatch
        for place, row in enumerate(chain.from_iterable(mappings)):
            if not added.isdisjoint(row):
                raise BulkFailed(
                    f"row {first_row + place} has a column with the name of an added one; set --output-column PREFIX"
                )
            failed = errors[place] is not None
            new = {self._job.name_of(kind): None if failed else made[place] for kind, made in vectors.items()}
            if failed:
                new[self._job.name_of(ERROR)] = errors[place]
            own = msgspec.json.encode(row, enc_hook=str)
            more = orjson.dumps(new, option=orjson.OPT_SERIALIZE_NUMPY)
            lines.append(more if own == b"{}" else own[:-1] + b"," + more[1:])
        data = b"".join(line + b"\n" for line in lines)
        if self._job.output_compression == "gz":
            return gzip.compress(data, 6, mtime=0)
        return zstandard.ZstdCompressor().compress(data) if self._job.output_compression == "zst" else data

    def _vectors(self, kind: str, part: Sequence[EmbeddedRows]) -> Sequence[Any]:
        if kind == "dense":
            dtype = self._job.numbers if self._job.numbers != "ubinary" else "uint8"
            return [np.ascontiguousarray(row) for row in dense_rows(part, self._widths.dense, dtype)]
        if kind == "sparse":
            return [
                None if one is None else {"indices": one.indices.tolist(), "values": one.values.tolist()}
                for one in each_row(part, kind)
            ]
        return [None if one is None else np.ascontiguousarray(one, np.float32) for one in each_row(part, kind)]


class NpyOutput(BulkOutput):
    """Only the dense vectors, (rows, D), for numpy.load(mmap_mode="r")."""

    suffix = ".npy"

    def __init__(self, job: BulkJob, widths: VectorWidths) -> None:
        self._dtype = np.dtype("uint8" if job.numbers == "ubinary" else job.numbers)
        self._width = widths.dense

    def open(self, path: Path) -> PartFile:
        return _NpyFile(path, lambda rows, _: dense_rows(rows, self._width, self._dtype).tobytes(), self._header)

    def merge(self, parts: Sequence[Path], whole: Path) -> None:
        n_bytes = sum(part.stat().st_size - NPY_HEADER_BYTES for part in parts)
        with whole.open("wb") as file:
            file.write(self._header(n_bytes))
            for part in parts:
                _append(part, file, NPY_HEADER_BYTES)

    def _header(self, n_bytes: int) -> bytes:
        """n_bytes: of the rows."""
        rows = n_bytes // (self._width * self._dtype.itemsize)
        fields = f"{{'descr': {self._dtype.str!r}, 'fortran_order': False, 'shape': ({rows}, {self._width}), }}"
        length = NPY_HEADER_BYTES - 10
        return b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little") + fields.ljust(length - 1).encode() + b"\n"


class _BytesFile:
    """A part of rows that are encoded one after the other."""

    def __init__(self, path: Path, encode: Callable[[Sequence[EmbeddedRows], int], bytes]) -> None:
        self._file = path.open("wb")
        self._encode = encode

    def write(self, rows: Sequence[EmbeddedRows], first_row: int) -> None:
        self._file.write(self._encode(rows, first_row))

    def close(self) -> None:
        self._file.close()


class _NpyFile(_BytesFile):
    """The header has the number of rows, and is written at the end."""

    def __init__(
        self,
        path: Path,
        encode: Callable[[Sequence[EmbeddedRows], int], bytes],
        header: Callable[[int], bytes],
    ) -> None:
        super().__init__(path, encode)
        self._header = header
        self._file.write(bytes(NPY_HEADER_BYTES))

    def close(self) -> None:
        n_bytes = self._file.tell() - NPY_HEADER_BYTES
        self._file.seek(0)
        self._file.write(self._header(n_bytes))
        super().close()


def _append(part: Path, whole: IO[bytes], start: int = 0) -> None:
    """Copy the bytes of a part from `start` on."""
    with part.open("rb") as file:
        file.seek(start)
        shutil.copyfileobj(file, whole, COPY_BYTES)
