"""The input files of a job: finding them, and reading lines, CSV, JSON Lines and whole files as Rows, in a thread.

arrow_input.py reads tables. Here rows are read one by one, without pyarrow: an invalid row is known by its number, and
only a few rows are in memory.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, TypeAlias, get_args
from zlib import error as ZlibError

import msgspec
import zstandard

from vectord.bulk.job import STDIN, BulkFailed, BulkJob, Compression, InputFormat
from vectord.bulk.rows import MAX_ROW_BYTES, InvalidText, RowLimits, Rows
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
ZSTD_WINDOW_BYTES = 128 * 2**20  # frames with a larger window are refused
NOT_UTF8 = InvalidText("the text is not UTF-8")
TEXT = "text"  # the default column, and the column of lines and files
PATH = "path"  # the column of a file's name if each file is a text

BinaryFile: TypeAlias = Any  # the type checker does not accept gzip's as IO[bytes]
Row: TypeAlias = "tuple[str | InvalidText, Mapping[str, Any], int]"  # text, columns, about the bytes of all columns


@dataclass(frozen=True, slots=True)
class InputSource:
    """The files of a job, in a fixed order."""

    path: Path | None  # None: standard input
    format: InputFormat
    size_bytes: int | None  # of all files; None for standard input
    identity: str  # changes with any file's name, size or time; "" for standard input

    def files(self) -> Iterator[Path]:
        if self.path is not None:
            yield from _files(self.path)


def find_source(job: BulkJob) -> InputSource:
    """Raises ConfigError for a missing file, for an unknown format, and for an option of another format."""
    if job.source == STDIN:
        if job.input_format in {"files", "parquet"} or job.input_format is None:
            known = ", ".join(name for name in get_args(InputFormat) if name not in {"files", "parquet"})
            raise ConfigError(f"IN is standard input: set --format to one of {known}")
        source = InputSource(None, job.input_format, None, "")
    else:
        path = Path(job.source)
        if not path.exists():
            raise ConfigError(f"IN: {path} does not exist")
        digest, size_bytes = hashlib.blake2b(digest_size=16), 0
        for file in _files(path):
            found = file.stat()
            size_bytes += found.st_size
            identity = f"{os.fspath(file.relative_to(path))}\0{found.st_size}\0{found.st_mtime_ns}\0"
            digest.update(identity.encode("utf-8", "surrogateescape"))
        source = InputSource(path, job.input_format or _format_of(path), size_bytes, digest.hexdigest())
    if job.column is not None and source.format in {"lines", "files"}:
        raise ConfigError(f"--column: the format {source.format} has no columns")
    if job.columns_as_text and source.format != "jsonl":
        raise ConfigError(f"--columns-as-text: is for JSON Lines; the format of IN is {source.format}")
    return source


def format_of_name(path: Path) -> tuple[str, Compression | None]:
    """The suffix that determines the format, in lower case, and the compression."""
    compression = COMPRESSIONS.get(path.suffix.lower())
    return (Path(path.stem).suffix if compression else path.suffix).lower(), compression


def open_bytes(path: Path | None) -> tuple[BinaryFile, IO[bytes]]:
    """The decompressed file, and the file itself, whose position is the progress. None: standard input."""
    raw: IO[bytes] = sys.stdin.buffer if path is None else path.open("rb")
    compression = None if path is None else format_of_name(path)[1]
    if compression == "gz":
        return gzip.GzipFile(fileobj=raw), raw
    if compression == "zst":
        decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES)
        return io.BufferedReader(decompressor.stream_reader(raw, read_across_frames=True)), raw
    return raw, raw


def unreadable(path: Path | None, cause: Exception) -> BulkFailed:
    return BulkFailed(f"{path or 'standard input'} cannot be read: {cause}")


def _files(path: Path) -> Iterator[Path]:
    """path itself, or the files below it, sorted by folder and name, without hidden files and links to folders."""
    if not path.is_dir():
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            file = Path(folder, name)
            if not name.startswith(".") and file.is_file():
                yield file


def _format_of(path: Path) -> InputFormat:
    """The format of a file or of all files in a folder. Files of unknown formats and .txt are whole texts there."""
    suffixes = {format_of_name(file)[0] for file in _files(path)}
    if not path.is_dir():
        (suffix,) = suffixes
        if suffix not in SUFFIXES:
            raise ConfigError(f"IN: {suffix or 'a name without a suffix'} does not determine the format; set --format")
        return SUFFIXES[suffix]
    if not suffixes:
        raise ConfigError(f"IN: {path} contains no file")
    formats = {SUFFIXES.get(suffix, "files") for suffix in suffixes}
    formats = {"files" if one == "lines" else one for one in formats}
    if len(formats) > 1:
        raise ConfigError(f"IN: the files in {path} have several formats ({', '.join(sorted(formats))}); set --format")
    return formats.pop()


# --- rows -----------------------------------------------------------------------------------------------------


def read_rows(source: InputSource, column: str | None, limits: RowLimits) -> Iterator[Rows]:
    """All rows of all files, grouped by `limits`. Raises BulkFailed, or ConfigError for the column."""
    read_bytes = 0
    for path in source.files() if source.path is not None else [None]:
        unpacked, raw = open_bytes(path)
        try:
            with unpacked, raw:
                for texts, columns, size_bytes in _groups(_rows(unpacked, path, source, column), limits):
                    yield Rows(texts, columns, 0 if path is None else read_bytes + raw.tell(), size_bytes)
        except (OSError, EOFError, ZlibError, zstandard.ZstdError) as cause:
            raise unreadable(path, cause) from cause
        read_bytes += 0 if path is None else path.stat().st_size


def _groups(
    rows: Iterator[Row], limits: RowLimits
) -> Iterator[tuple[list[str | InvalidText], list[Mapping[str, Any]], int]]:
    texts: list[str | InvalidText] = []
    columns: list[Mapping[str, Any]] = []
    characters = size_bytes = 0
    for text, others, own_bytes in rows:
        more = len(text) if isinstance(text, str) else 0
        if texts and (
            len(texts) == limits.rows
            or characters + more > limits.characters
            or size_bytes + own_bytes > limits.size_bytes
        ):
            yield texts, columns, size_bytes
            texts, columns, characters, size_bytes = [], [], 0, 0
        texts.append(text)
        columns.append(others)
        characters += more
        size_bytes += own_bytes
    if texts:
        yield texts, columns, size_bytes


def _rows(file: IO[bytes], path: Path | None, source: InputSource, column: str | None) -> Iterator[Row]:
    match source.format:
        case "lines":
            return _lines(file)
        case "jsonl":
            return _json_lines(file, column)
        case "files":
            assert path is not None and source.path is not None
            name = _with_marks(str(path.relative_to(source.path)) if path != source.path else path.name)
            data = file.read(MAX_ROW_BYTES + 1)
            text = _decoded(data)
            if len(data) > MAX_ROW_BYTES:
                text = InvalidText(f"{name} is larger than {MAX_ROW_BYTES} bytes")
            return iter([(text, {PATH: name, TEXT: text if isinstance(text, str) else None}, len(data))])
    return _table(file, column, "\t" if source.format == "tsv" else ",")


def _lines(file: IO[bytes]) -> Iterator[Row]:
    """One text for each line, including empty ones."""
    for line in _bounded(file, "bytes"):
        text = _decoded(line.rstrip(b"\r\n"))
        yield text, {TEXT: text if isinstance(text, str) else None}, len(line)


def _json_lines(file: IO[bytes], column: str | None) -> Iterator[Row]:
    """One object for each line; empty lines are skipped."""
    for line in _bounded(file, "bytes"):
        if not line.strip():
            continue
        try:
            found = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            yield InvalidText("the line is not JSON"), {}, 0
            continue
        if not isinstance(found, dict):
            yield InvalidText("the line is not a JSON object"), {}, 0
            continue
        column = column or text_column(found, [name for name, value in found.items() if isinstance(value, str)])
        yield text_of(found.get(column), column), found, len(line)


def _table(file: IO[bytes], column: str | None, delimiter: str) -> Iterator[Row]:
    """CSV with a header line. CSV has no types: every column contains strings, and an id of 007 stays 007."""
    csv.field_size_limit(MAX_ROW_BYTES)
    text_file = io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="")
    reader = csv.reader(_bounded(text_file, "characters"), delimiter=delimiter, strict=True)
    try:
        names = next(reader, [])
        if len(set(names)) != len(names):
            raise BulkFailed("the first line names a column twice")
        column = column or text_column(names, names if len(names) == 1 else [])
        if column not in names:
            raise missing_column(column, names)
        for values in reader:
            if not values:
                continue
            if len(values) != len(names):
                raise BulkFailed(f"line {reader.line_num} has {len(values)} fields; the first line names {len(names)}")
            row = dict(zip(names, values, strict=True))
            text = row[column]
            columns = {name: value if _is_unicode(value) else _with_marks(value) for name, value in row.items()}
            yield (text if _is_unicode(text) else NOT_UTF8), columns, sum(map(len, values))
    except csv.Error as cause:
        raise BulkFailed(f"line {reader.line_num} is not CSV: {cause}") from cause
    finally:
        text_file.detach()  # closing it would close the file, whose position is still read


def text_column(names: Mapping[str, Any] | Sequence[str], strings: Sequence[str]) -> str:
    """The column of the texts if --column is not set. strings: the candidates. Raises ConfigError."""
    if TEXT in names:
        return TEXT
    if len(strings) == 1:
        return strings[0]
    raise ConfigError(f"--column: set the column of the texts; there are {_listed(names)}")


def missing_column(column: str, names: Mapping[str, Any] | Sequence[str]) -> ConfigError:
    return ConfigError(f"--column: there is no {column!r}; there are {_listed(names)}")


def text_of(value: object, column: str) -> str | InvalidText:
    """A value of the text column as a text."""
    if isinstance(value, str):
        return value
    return InvalidText(f"`{column}` is {'null' if value is None else f'not a string but {type(value).__name__}'}")


def _listed(names: Mapping[str, Any] | Sequence[str]) -> str:
    shown = [repr(name) for name in list(names)[:20]]
    return ", ".join(shown) + (" ..." if len(names) > 20 else "") or "none"


def _bounded(file: Any, unit: str) -> Iterator[Any]:
    """The lines of a file of bytes or of text."""
    while line := file.readline(MAX_ROW_BYTES + 1):
        if len(line) > MAX_ROW_BYTES:
            raise BulkFailed(f"a line is longer than {MAX_ROW_BYTES} {unit}")
        yield line


def _decoded(data: bytes) -> str | InvalidText:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return NOT_UTF8


def _with_marks(text: str) -> str:
    """`text` with U+FFFD for invalid UTF-8: the columns are written as UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
