"""The interface of outputs, and the file formats: how a part is written, and how OUT is made of all parts.

JSON Lines and .npy are here, Parquet and Arrow in arrow_output.py. folder.py is the output to files, database.py the
one to databases. All of them run in threads.
"""

from __future__ import annotations

import gzip
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import msgspec
import numpy as np
import orjson
import zstandard

from vectord.bulk.embedder import ModelFacts
from vectord.bulk.inputs import format_of_name
from vectord.bulk.job import DATABASES, ERROR, BulkJob, Compression, Manifest, OutputFormat
from vectord.bulk.rows import EmbeddedRows, Rows, chunk_columns, dense_rows, each_row, errors_of
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


class BulkOutput(ABC):
    """Where the rows of a job go: the folder of their parts, or a database. Called in threads, one call at a time.

    A call may raise BulkFailed, or RetryLater if the same call may succeed later.
    """

    name: str  # for the summary and for errors, without a password

    def begin(self, rows: Iterator[Rows]) -> Iterator[Rows]:
        """The rows of IN, unchanged; the first ones may determine the columns. Called before the model is loaded."""
        return rows

    def check(self, facts: ModelFacts) -> None:
        """Raises ConfigError if the output cannot hold the vectors of this model. It need not be loaded yet."""
        return

    @abstractmethod
    def start(self, manifest: Manifest, widths: Mapping[str, int], facts: Mapping[str, Any]) -> frozenset[int]:
        """The finished parts. facts: of the model. Raises ConfigError if the output belongs to another job."""

    def new_rows(self, rows: Rows) -> Rows:
        """Those that the output does not have yet."""
        return rows

    @abstractmethod
    def write(self, part: int, rows: Sequence[EmbeddedRows]) -> None:
        """Some rows of a part, in order; the parts are written one after the other."""

    def finish(self, part: int) -> None:
        """Called after the last rows of a part."""
        return

    def complete(self, parts: int) -> int:
        """The number of parts that are missing; if there is none, OUT is complete. parts: of IN."""
        return 0

    def close(self) -> None:
        """Discards an unfinished part."""
        return


class FileFormat(ABC):
    """How parts are encoded in one format, and joined. Each part is a complete file of the format."""

    def __init__(self, job: BulkJob, suffix: str) -> None:
        self.suffix = suffix
        self._job = job
        self._widths: Mapping[str, int] = {}  # of `TextVectors.widths`

    def begin(self, rows: Iterator[Rows]) -> Iterator[Rows]:
        """As `BulkOutput.begin`."""
        return rows

    def start(self, widths: Mapping[str, int], facts: Mapping[str, Any]) -> None:
        """Called before `open`. facts: of the model, for the metadata of a table."""
        self._widths = widths

    def open(self, path: Path) -> Any:
        """The file of a part, for `write` and `close`."""
        return path.open("wb")

    @abstractmethod
    def write(self, file: Any, rows: Sequence[EmbeddedRows]) -> None:
        """Raises BulkFailed with the row at fault."""

    def close(self, file: Any) -> None:
        file.close()

    @abstractmethod
    def merge(self, parts: Sequence[Path], whole: Path) -> None:
        """Write one file with the rows of all parts."""


def format_of_output(out: str, option: str | None) -> tuple[OutputFormat, Compression | None]:
    """From the scheme of a database, --output-format, or the name. Raises ConfigError for an unknown format."""
    if (database := DATABASES.get(out.partition("://")[0])) is not None:
        return database, None
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
    if job.output_format == "postgres" and find_spec("psycopg") is None:
        raise ConfigError(f"OUT: PostgreSQL needs psycopg; run {installing('postgres')}")
    if job.keep_parts and job.out_url is not None:
        raise ConfigError("--parts: is for files of this machine")
    if job.id_column is not None and not job.is_database:
        raise ConfigError("--id-column: is for databases")
    if job.is_shard and not job.is_database and (job.restart or not job.keep_parts):
        raise ConfigError("--shard: requires --parts, and excludes --restart, which deletes the parts of other shards")
    if job.output_format == "npy" and (job.prefix or job.chunk is not None):
        raise ConfigError(f"{'--chunk' if job.chunk else '--output-column'}: .npy has no columns")
    if job.columns_as_text and job.output_format not in {"parquet", "arrow", "arrows"}:
        raise ConfigError(f"--columns-as-text: is for tables; the format of OUT is {job.output_format}")
    if job.output_format == "npy" and (job.kinds != ("dense",) or job.on_error == "null"):
        raise ConfigError(
            "OUT: .npy holds only dense vectors, one for each row: no other --outputs, no --on-error null"
        )


def file_format_of(job: BulkJob) -> FileFormat:
    if job.output_format == "jsonl":
        return JsonLinesFormat(job, f".jsonl.{job.output_compression}" if job.output_compression else ".jsonl")
    if job.output_format == "npy":
        return NpyFormat(job, ".npy")
    from vectord.bulk.arrow_output import ArrowFormat  # noqa: PLC0415 - pyarrow, an extra

    return ArrowFormat(job)


class JsonLinesFormat(FileFormat):
    """One object for each row: its columns and its vectors. Compressed files have one member for each write."""

    def write(self, file: Any, rows: Sequence[EmbeddedRows]) -> None:
        data = self._lines(rows)
        if self._job.output_compression == "gz":
            data = gzip.compress(data, 6, mtime=0)
        file.write(zstandard.ZstdCompressor().compress(data) if self._job.output_compression == "zst" else data)

    def merge(self, parts: Sequence[Path], whole: Path) -> None:
        with whole.open("wb") as file:
            for part in parts:
                _append(part, file)

    def _lines(self, rows: Sequence[EmbeddedRows]) -> bytes:
        errors = errors_of(rows)
        chunks = chunk_columns(rows, self._job)
        vectors = {kind: self._vectors(kind, rows) for kind in self._job.kinds}
        lines = []
        for place, row in enumerate(chain.from_iterable(one.rows.mappings() for one in rows)):
            self._job.check_columns(row)
            failed = errors[place] is not None
            new: dict[str, Any] = {name: numbers[place] for name, numbers in chunks.items()}
            new |= {self._job.name_of(kind): None if failed else made[place] for kind, made in vectors.items()}
            if failed:
                new[self._job.name_of(ERROR)] = errors[place]
            own = msgspec.json.encode(row, enc_hook=str)
            more = orjson.dumps(new, option=orjson.OPT_SERIALIZE_NUMPY)
            lines.append(more if own == b"{}" else own[:-1] + b"," + more[1:])
        return b"".join(line + b"\n" for line in lines)

    def _vectors(self, kind: str, part: Sequence[EmbeddedRows]) -> Sequence[Any]:
        if kind == "dense":
            return list(dense_rows(part, self._widths["dense"], self._job.dense_dtype))
        if kind == "muvera":
            return list(dense_rows(part, self._widths["muvera"], np.float32, "muvera"))
        if kind == "sparse":
            return [
                None if one is None else {"indices": one.indices.tolist(), "values": one.values.tolist()}
                for one in each_row(part, kind)
            ]
        dtype = np.float32 if self._job.colbert_dtype == np.float16 else self._job.colbert_dtype  # rounded when read
        return [None if one is None else np.ascontiguousarray(one, dtype) for one in each_row(part, kind)]


class NpyFormat(FileFormat):
    """Only the dense vectors, (rows, D), for numpy.load(mmap_mode="r"). The header, which has the number of rows, is
    written at the end."""

    def open(self, path: Path) -> Any:
        file = path.open("wb")
        file.write(bytes(NPY_HEADER_BYTES))
        return file

    def write(self, file: Any, rows: Sequence[EmbeddedRows]) -> None:
        file.write(dense_rows(rows, self._widths["dense"], self._job.dense_dtype).tobytes())

    def close(self, file: Any) -> None:
        dtype, width = self._job.dense_dtype, self._widths["dense"]
        rows = (file.tell() - NPY_HEADER_BYTES) // (width * dtype.itemsize)
        fields = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': ({rows}, {width}), }}"
        length = NPY_HEADER_BYTES - 10
        file.seek(0)
        file.write(b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little") + fields.ljust(length - 1).encode() + b"\n")
        file.close()

    def merge(self, parts: Sequence[Path], whole: Path) -> None:
        file = self.open(whole)
        for part in parts:
            _append(part, file, NPY_HEADER_BYTES)
        self.close(file)


def _append(part: Path, whole: IO[bytes], start: int = 0) -> None:
    """Copy the bytes of a part from `start` on."""
    with part.open("rb") as file:
        file.seek(start)
        shutil.copyfileobj(file, whole, COPY_BYTES)
