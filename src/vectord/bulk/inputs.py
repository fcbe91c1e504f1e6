"""The input files of a job: finding them, and reading lines, CSV, JSON Lines and whole files as Rows, in a thread.

Files are on this machine, or in a store that fsspec reaches by a URL (s3://, gs://, hf://). arrow_input.py reads
tables. Here rows are read one by one, without pyarrow: an invalid row is known by its number, and only a few rows are
in memory.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import os
import sys
from codecs import BOM_UTF8
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import IO, Any, NoReturn, TypeAlias, get_args
from zlib import error as ZlibError

import msgspec
import zstandard

from vectord.bulk.job import STDIN, UTF8, BulkFailed, BulkJob, Compression, InputFormat
from vectord.bulk.rows import MAX_ROW_BYTES, InvalidText, RowInput, RowLimits, Rows, characters_of
from vectord.config.sources import without_password
from vectord.errors import ConfigError, installing
from vectord.schema import PDF, Media

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
EXTRAS: Mapping[str, str] = MappingProxyType({"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"})  # of a scheme
COMPRESSIONS: Mapping[str, Compression] = MappingProxyType({".gz": "gz", ".zst": "zst"})
TABLES: frozenset[InputFormat] = frozenset({"parquet", "arrow"})
ZSTD_WINDOW_BYTES = 128 * 2**20  # frames with a larger window are refused
IMAGES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})
MEDIA = IMAGES | {".pdf"}
TEXT = "text"  # the default column, and the column of lines and files
IMAGE = "image"  # the default column with --images
PATH = "path"  # the column of a file's name if each file is a text, an image or a PDF

BinaryFile: TypeAlias = Any  # the type checker does not accept gzip's as IO[bytes]
Store: TypeAlias = Any  # an fsspec.AbstractFileSystem: fsspec ships no types
# text, the column that it is in, all columns, about their bytes
Row: TypeAlias = "tuple[RowInput, str, Mapping[str, Any], int]"


@dataclass(frozen=True, slots=True)
class InputFile:
    name: str  # its path below IN, or its own name
    size_bytes: int
    version: str  # changes with the content
    open: Callable[[], BinaryFile]


@dataclass(frozen=True, slots=True)
class InputSource:
    """The files of a job, in a fixed order."""

    job: BulkJob
    format: InputFormat
    size_bytes: int | None  # of all files; None for standard input
    identity: str  # changes with any file's name, size or version; "" for standard input
    has_texts: bool = True  # not all files are images or PDFs
    has_media: bool = False  # some rows are images or PDFs

    @property
    def is_stdin(self) -> bool:
        return self.job.source == STDIN

    def files(self) -> Iterator[InputFile]:
        return _files(self.job.source)

    def read(self, limits: RowLimits) -> Generator[Rows, None, None]:
        """All rows of all files, grouped by `limits`. Raises BulkFailed, or ConfigError for the column."""
        if self.format in TABLES:
            from vectord.bulk.arrow_input import read_tables  # noqa: PLC0415 - pyarrow, an extra

            reading = read_tables(self, limits)
        else:
            reading = read_rows(self, limits)
        if not self.job.has_pages:
            return reading
        from vectord.bulk.media import with_media  # noqa: PLC0415 - few jobs have files

        return with_media(reading, self.job, limits)


def find_source(job: BulkJob) -> InputSource:
    """Raises ConfigError for a missing file, for an unknown format, and for an option of another format."""
    if job.source == STDIN:
        if job.input_format in {"files", "parquet"} or job.input_format is None:
            known = ", ".join(name for name in get_args(InputFormat) if name not in {"files", "parquet"})
            raise ConfigError(f"IN is standard input: set --format to one of {known}")
        source = InputSource(replace(job, has_pages=job.images), job.input_format, None, "", has_media=job.images)
    else:
        digest, size_bytes = hashlib.blake2b(digest_size=16), 0
        suffixes: set[str] = set()
        first_names: list[str] = []  # two at most
        for file in _files(job.source):
            first_names = [*first_names, file.name][:2]
            suffixes.add(format_of_name(file.name)[0])
            size_bytes += file.size_bytes
            identity = f"{file.name}\0{file.size_bytes}\0{file.version}\0"
            digest.update(identity.encode("utf-8", "surrogateescape"))
        is_file = first_names == [PurePosixPath(job.source).name]
        format_ = job.input_format or _format_of(job.source, suffixes, is_file=is_file)
        job = replace(job, has_pages=job.images or (format_ == "files" and ".pdf" in suffixes))
        has_media = job.images or (format_ == "files" and not suffixes.isdisjoint(MEDIA))
        source = InputSource(job, format_, size_bytes, digest.hexdigest(), not suffixes <= MEDIA, has_media)
    if job.column is not None and source.format in {"lines", "files"}:
        raise ConfigError(f"--column: the format {source.format} has no columns")
    for option, is_given, formats, names in (
        ("--columns-as-text", job.columns_as_text, {"jsonl"}, "JSON Lines"),
        ("--delimiter", job.delimiter is not None, {"csv", "tsv"}, "CSV"),
        ("--images", job.images, {*get_args(InputFormat)} - {"files"}, "columns and lines"),
        ("--encoding", job.encoding != UTF8, {"csv", "tsv", "lines", "files"}, "CSV, lines and files"),
    ):
        if is_given and source.format not in formats:
            raise ConfigError(f"{option}: is for {names}; the format of IN is {source.format}")
    return source


def format_of_name(name: str) -> tuple[str, Compression | None]:
    """The suffix that determines the format, in lower case, and the compression."""
    path = PurePosixPath(name)
    compression = COMPRESSIONS.get(path.suffix.lower())
    return (PurePosixPath(path.stem).suffix if compression else path.suffix).lower(), compression


def connect_store(url: str, what: str) -> tuple[Store, str]:
    """The file system that the scheme of the URL names, and the place in it. what: IN or OUT."""
    from fsspec.core import url_to_fs  # noqa: PLC0415 - takes 0.1 s

    scheme = url.partition("://")[0]
    try:
        store, place = url_to_fs(url)
    except ImportError as cause:
        way_out = f"run {installing(EXTRAS[scheme])}" if scheme in EXTRAS else str(cause)
        raise ConfigError(f"{what}: {scheme}:// needs another package; {way_out}") from None
    except Exception as cause:  # each store has errors of its own
        raise ConfigError(without_password(f"{what}: {url} cannot be reached: {cause}")) from None
    return store, place


def open_bytes(file: InputFile | None) -> tuple[BinaryFile, BinaryFile]:
    """The decompressed file, and the file itself, whose position is the progress. None: standard input."""
    raw = sys.stdin.buffer if file is None else file.open()
    compression = None if file is None else format_of_name(file.name)[1]
    if compression == "gz":
        return gzip.GzipFile(fileobj=raw), raw
    if compression == "zst":
        decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES)
        return io.BufferedReader(decompressor.stream_reader(raw, read_across_frames=True)), raw
    return raw, raw


def unreadable(file: InputFile | None, cause: Exception) -> BulkFailed:
    reason = getattr(cause, "strerror", None) or cause
    return BulkFailed(without_password(f"{file.name if file else 'standard input'} cannot be read: {reason}"))


def _files(source: str) -> Iterator[InputFile]:
    """The file, or the files below the folder, sorted by folder and name, without hidden files."""
    if "://" in source:
        store, root = connect_store(source, "IN")
        try:
            found = store.find(root, detail=True)
        except Exception as cause:  # each store has errors of its own
            raise ConfigError(without_password(f"IN: {source} cannot be read: {cause}")) from None
        if not found:
            raise ConfigError(without_password(f"IN: {source} does not exist"))
        for stored, facts in sorted(found.items()):
            name = stored.removeprefix(root).lstrip("/") or PurePosixPath(stored).name
            if not any(part.startswith(".") for part in PurePosixPath(name).parts):
                yield InputFile(name, facts["size"], str(facts), partial(store.open, stored, "rb"))
        return

    def refuse(cause: OSError) -> NoReturn:
        raise ConfigError(f"IN: {cause.filename} cannot be read: {cause.strerror}") from None

    path = Path(source)
    if not path.exists():
        raise ConfigError(f"IN: {path} does not exist")
    if not path.is_dir():
        yield _local_file(path, path.name)
        return
    for folder, folders, names in os.walk(path, onerror=refuse):  # without links to folders
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            file = Path(folder, name)
            if not name.startswith(".") and file.is_file():
                yield _local_file(file, os.fspath(file.relative_to(path)))


def _local_file(path: Path, name: str) -> InputFile:
    found = path.stat()
    return InputFile(name, found.st_size, str(found.st_mtime_ns), partial(path.open, "rb"))


def _format_of(source: str, suffixes: Collection[str], *, is_file: bool) -> InputFormat:
    """The format of a file or of all files in a folder. Files of unknown formats and .txt are whole texts there."""
    if is_file:
        (suffix,) = suffixes
        if suffix in MEDIA:
            return "files"
        if suffix not in SUFFIXES:
            raise ConfigError(f"IN: {suffix or 'a name without a suffix'} does not determine the format; set --format")
        return SUFFIXES[suffix]
    if not suffixes:
        raise ConfigError(without_password(f"IN: {source} contains no file"))
    formats = {SUFFIXES.get(suffix, "files") for suffix in suffixes}
    formats = {"files" if one == "lines" else one for one in formats}
    if len(formats) > 1:
        several = f"IN: the files in {source} have several formats ({', '.join(sorted(formats))}); set --format"
        raise ConfigError(without_password(several))
    return formats.pop()


# --- rows -----------------------------------------------------------------------------------------------------


def read_rows(source: InputSource, limits: RowLimits) -> Generator[Rows, None, None]:
    """As `InputSource.read`."""
    read_bytes = 0
    for file in [None] if source.is_stdin else source.files():
        try:
            unpacked, raw = open_bytes(file)
            with unpacked, raw:
                for rows in _groups(_rows(unpacked, file, source), limits):
                    yield replace(rows, position=0 if file is None else read_bytes + raw.tell())
        except (OSError, EOFError, ZlibError, zstandard.ZstdError) as cause:
            raise unreadable(file, cause) from cause
        read_bytes += 0 if file is None else file.size_bytes


def _groups(rows: Iterator[Row], limits: RowLimits) -> Iterator[Rows]:
    texts: list[RowInput] = []
    columns: list[Mapping[str, Any]] = []
    characters = size_bytes = 0
    for text, column, others, own_bytes in rows:
        more = characters_of(text)
        if texts and (
            len(texts) == limits.rows
            or characters + more > limits.characters
            or size_bytes + own_bytes > limits.size_bytes
        ):
            yield Rows(texts, columns, 0, size_bytes, column)
            texts, columns, characters, size_bytes = [], [], 0, 0
        texts.append(text)
        columns.append(others)
        characters += more
        size_bytes += own_bytes
    if texts:
        yield Rows(texts, columns, 0, size_bytes, column)


def _rows(opened: IO[bytes], file: InputFile | None, source: InputSource) -> Iterator[Row]:
    job = source.job
    match source.format:
        case "lines":
            return _lines(opened, job.encoding)
        case "jsonl":
            return _json_lines(opened, job)
        case "files":
            assert file is not None
            return iter([_file(opened, _with_marks(file.name), source)])
    return _table(opened, job, job.delimiter or ("\t" if source.format == "tsv" else ","))


def _file(opened: IO[bytes], name: str, source: InputSource) -> Row:
    """An image or a PDF by its suffix; else a text."""
    data = opened.read(MAX_ROW_BYTES + 1)
    text: RowInput
    if len(data) > MAX_ROW_BYTES:
        text = InvalidText(f"{name} is larger than {MAX_ROW_BYTES} bytes")
    elif (suffix := format_of_name(name)[0]) in MEDIA:
        text = Media(data, type="image/*" if suffix in IMAGES else PDF)
    else:
        text = _checked(data.decode(source.job.encoding, "surrogateescape"), source.job.encoding)
    columns: dict[str, str | None] = {PATH: name}
    if source.has_texts:
        columns[TEXT] = text if isinstance(text, str) else None
    return text, TEXT, columns, len(data)


def _lines(file: IO[bytes], encoding: str) -> Iterator[Row]:
    """One text for each line, including empty ones."""
    with _decoding(file, encoding, "\n") as decoded:
        for line in _bounded(decoded, "characters"):
            text = _checked(line.rstrip("\r\n"), encoding)
            yield text, TEXT, {TEXT: text if isinstance(text, str) else None}, len(line)


def _json_lines(file: IO[bytes], job: BulkJob) -> Iterator[Row]:
    """One object for each line; empty lines are skipped."""
    column = job.column
    for line in _bounded(file, "bytes"):
        if not line.strip():
            continue
        try:
            found = msgspec.json.decode(line.removeprefix(BOM_UTF8))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            yield InvalidText("the line is not JSON"), column or "", {}, 0
            continue
        if not isinstance(found, dict):
            yield InvalidText("the line is not a JSON object"), column or "", {}, 0
            continue
        strings = [name for name, value in found.items() if isinstance(value, str)]
        column = column or text_column(found, strings, job)
        yield text_of(found.get(column), column, job), column, found, len(line)


def _table(file: IO[bytes], job: BulkJob, delimiter: str) -> Iterator[Row]:
    """CSV with a header line. CSV has no types: every column contains strings, and an id of 007 stays 007."""
    csv.field_size_limit(MAX_ROW_BYTES)
    with _decoding(file, job.encoding, "") as decoded:
        reader = csv.reader(_bounded(decoded, "characters"), delimiter=delimiter, strict=True)
        try:
            names = next(reader, [])
            if isinstance(first_line := _checked("".join(names), job.encoding, "the first line"), InvalidText):
                raise BulkFailed(f"{first_line.reason}; set --encoding")
            if len(set(names)) != len(names):
                raise BulkFailed("the first line names a column twice")
            column = job.column or text_column(names, names if len(names) == 1 else [], job)
            if column not in names:
                raise missing_column(column, names)
            for values in reader:
                if not values:
                    continue
                if len(values) != len(names):
                    problem = f"has {len(values)} fields; the first line names {len(names)}"
                    raise BulkFailed(f"line {reader.line_num} {problem}")
                row = dict(zip(names, values, strict=True))
                columns = {name: value if _is_unicode(value) else _with_marks(value) for name, value in row.items()}
                yield _checked(row[column], job.encoding), column, columns, sum(map(len, values))
        except csv.Error as cause:
            raise BulkFailed(f"line {reader.line_num} is not CSV: {cause}") from cause


@contextmanager
def _decoding(file: IO[bytes], encoding: str, newline: str) -> Iterator[IO[str]]:
    """The text of a file. Invalid bytes become surrogates."""
    decoded = io.TextIOWrapper(file, encoding, errors="surrogateescape", newline=newline)
    try:
        yield decoded
    finally:
        decoded.detach()  # closing it would close the file, whose position is still read


def text_column(names: Mapping[str, Any] | Sequence[str], strings: Sequence[str], job: BulkJob) -> str:
    """The column of the texts or images if --column is not set. strings: the candidates."""
    usual = IMAGE if job.images else TEXT
    if usual in names:
        return usual
    if len(strings) == 1:
        return strings[0]
    raise ConfigError(f"--column: set the column of the {usual}s; there are {_listed(names)}")


def missing_column(column: str, names: Mapping[str, Any] | Sequence[str]) -> ConfigError:
    return ConfigError(f"--column: there is no {column!r}; there are {_listed(names)}")


def text_of(value: object, column: str, job: BulkJob) -> RowInput:
    """A value of the text column as a text; with --images, an image or the name of its file."""
    if job.images:
        from vectord.bulk.media import media_of, value_of_file  # noqa: PLC0415 - few jobs have files

        value = value_of_file(value)
        if isinstance(value, bytes):
            return media_of(value, f"`{column}`")
    if isinstance(value, str):
        return value
    if value is None:
        return InvalidText(f"`{column}` is null", is_null=True)
    return InvalidText(f"`{column}` is not a string but {type(value).__name__}")


def _listed(names: Mapping[str, Any] | Sequence[str]) -> str:
    shown = [repr(name) for name in list(names)[:20]]
    return ", ".join(shown) + (" ..." if len(names) > 20 else "") or "none"


def _bounded(file: Any, unit: str) -> Iterator[Any]:
    """The lines of a file of bytes or of text."""
    while line := file.readline(MAX_ROW_BYTES + 1):
        if len(line) > MAX_ROW_BYTES:
            raise BulkFailed(f"a line is longer than {MAX_ROW_BYTES} {unit}")
        yield line


def _checked(text: str, encoding: str, what: str = "the text") -> str | InvalidText:
    """`text`, unless it was decoded from invalid bytes."""
    return text if _is_unicode(text) else InvalidText(f"{what} is not {encoding.removesuffix('-sig').upper()}")


def _with_marks(text: str) -> str:
    """`text` with U+FFFD for invalid UTF-8: the columns are written as UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
