"""What the input is made of: which files, in which format, how large, and whether they are the ones of the last time.

Called once at the start. text_rows.py and arrow/reading.py read the rows, file after file, in a thread.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, TypeAlias, get_args

import zstandard

from vectord.bulk.failures import BulkFailed
from vectord.bulk.job import STDIN, Compression, InputFormat, Job
from vectord.errors import ConfigError

SUFFIXES: Mapping[str, InputFormat] = MappingProxyType(
    {
        ".parquet": "parquet",
        ".arrow": "arrow",
        ".arrows": "arrow",
        ".feather": "arrow",
        ".ipc": "arrow",
        ".csv": "csv",
        ".tsv": "tsv",
        ".jsonl": "jsonl",
        ".ndjson": "jsonl",
        ".txt": "lines",
    }
)
COMPRESSIONS: Mapping[str, Compression] = MappingProxyType({".gz": "gz", ".zst": "zst"})
TABLES: frozenset[InputFormat] = frozenset({"parquet", "arrow"})
BinaryFile: TypeAlias = Any  # gzip's is no IO[bytes] to the type checker, and is one
ZSTD_WINDOW_BYTES = 128 * 2**20  # a frame that wants more is refused


@dataclass(frozen=True, slots=True)
class Source:
    """The files of a job. Reading them again gives the same ones in the same order."""

    path: Path | None  # None: standard input
    format: InputFormat
    size_bytes: int | None  # of all files, None of standard input
    identity: str  # changes with a file's name, size or time; "" of standard input

    def files(self) -> Iterator[Path]:
        if self.path is not None:
            yield from _files(self.path)


def find_source(job: Job) -> Source:
    """Raises ConfigError for what is not there, or is of no format that is read here."""
    if job.source == STDIN:
        if job.input_format in {"files", "parquet"} or job.input_format is None:
            known = ", ".join(name for name in get_args(InputFormat) if name not in {"files", "parquet"})
            raise ConfigError(f"IN is standard input: say --format, one of {known}")
        return Source(None, job.input_format, None, "")
    path = Path(job.source)
    if not path.exists():
        raise ConfigError(f"IN: there is no {path}")
    size_bytes, identity = _measure(path)
    return Source(path, job.input_format or _format_of(path), size_bytes, identity)


def format_of_name(path: Path) -> tuple[str, Compression | None]:
    """The suffix that says the format, in lower case, and the compression after it."""
    compression = COMPRESSIONS.get(path.suffix.lower())
    return (Path(path.stem).suffix if compression else path.suffix).lower(), compression


def open_bytes(path: Path | None) -> tuple[BinaryFile, IO[bytes]]:
    """The bytes of a file, unpacked, and the file itself, whose position says how far it is read. None: stdin."""
    raw: IO[bytes] = sys.stdin.buffer if path is None else path.open("rb")
    compression = None if path is None else format_of_name(path)[1]
    if compression == "gz":
        return gzip.GzipFile(fileobj=raw), raw
    if compression == "zst":
        unpacker = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES)
        return io.BufferedReader(unpacker.stream_reader(raw, read_across_frames=True)), raw
    return raw, raw


def unpacking_failed(path: Path | None, cause: Exception) -> BulkFailed:
    return BulkFailed(f"{path or 'standard input'} cannot be read on: {cause}")


def _files(path: Path) -> Iterator[Path]:
    """path itself, or the files below it by name, a folder at a time; hidden ones and links to folders left out."""
    if not path.is_dir():
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            file = Path(folder, name)
            if not name.startswith(".") and file.is_file():
                yield file


def _measure(path: Path) -> tuple[int, str]:
    digest = hashlib.blake2b(digest_size=16)
    size_bytes = 0
    for file in _files(path):
        found = file.stat()
        size_bytes += found.st_size
        digest.update(
            f"{os.fspath(file.relative_to(path))}\0{found.st_size}\0{found.st_mtime_ns}\0".encode(
                "utf-8", "surrogateescape"
            )
        )
    return size_bytes, digest.hexdigest()


def _format_of(path: Path) -> InputFormat:
    """A folder's is that of its files, which are texts themselves where none is a table."""
    suffixes = {format_of_name(file)[0] for file in _files(path)}
    if not path.is_dir():
        (suffix,) = suffixes
        if suffix not in SUFFIXES:
            raise ConfigError(f"IN: {suffix or 'a name without a suffix'} is no format of its own; say --format")
        return SUFFIXES[suffix]
    if not suffixes:
        raise ConfigError(f"IN: no file is in {path}")
    formats = {SUFFIXES.get(suffix, "files") for suffix in suffixes}
    formats = {"files" if one == "lines" else one for one in formats}
    if len(formats) > 1:
        raise ConfigError(
            f"IN: the files in {path} are of several formats ({', '.join(sorted(formats))}); say --format"
        )
    return formats.pop()
