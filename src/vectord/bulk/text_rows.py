"""Lines, CSV, JSON Lines and whole files as Rows, of sizes to be sent as one request. Runs in a thread.

Read without pyarrow, row by row, so that a broken row is known by its number and the memory is that of a few rows.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias
from zlib import error as ZlibError

import msgspec
import zstandard

from vectord.bulk.failures import BulkFailed
from vectord.bulk.inputs import Source, open_bytes, unpacking_failed
from vectord.bulk.rows import MAX_ROW_BYTES, NoText, Rows
from vectord.errors import ConfigError

Row: TypeAlias = "tuple[str | NoText, Mapping[str, Any], int]"  # the last: of all its columns, in bytes

NOT_UTF8 = NoText("the text is not UTF-8")
TEXT = "text"  # the column that is looked for first, and the one that lines become
PATH = "path"  # the column of a file's name, where each is a text


@dataclass(frozen=True, slots=True)
class Limits:
    """Of the rows that go together; a longer text goes alone."""

    rows: int
    characters: int  # of the texts
    size_bytes: int = 8 * 2**20  # of all columns


def read_rows(source: Source, column: str | None, limits: Limits) -> Iterator[Rows]:
    """All rows of all files. Raises BulkFailed for what cannot be read, ConfigError for a column that is not there."""
    read_bytes = 0
    if source.path is None:
        yield from _of_file(None, source, column, limits, 0)
    for path in source.files():
        yield from _of_file(path, source, column, limits, read_bytes)
        read_bytes += path.stat().st_size


def _of_file(path: Path | None, source: Source, column: str | None, limits: Limits, before: int) -> Iterator[Rows]:
    unpacked, raw = open_bytes(path)
    try:
        with unpacked, raw:
            for rows in _together(_rows(unpacked, path, source, column), limits):
                texts, columns, size_bytes = rows
                yield Rows(texts, columns, 0 if path is None else before + raw.tell(), size_bytes)
    except (OSError, EOFError, ZlibError, zstandard.ZstdError) as cause:
        raise unpacking_failed(path, cause) from cause


def _together(rows: Iterator[Row], limits: Limits) -> Iterator[tuple[list[str | NoText], list[Mapping[str, Any]], int]]:
    texts: list[str | NoText] = []
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


def _rows(file: IO[bytes], path: Path | None, source: Source, column: str | None) -> Iterator[Row]:
    match source.format:
        case "lines":
            return _lines(file)
        case "jsonl":
            return _json_lines(file, column)
        case "files":
            assert path is not None and source.path is not None
            return _whole_file(file, path.relative_to(source.path) if path != source.path else Path(path.name))
    return _table(file, column, "\t" if source.format == "tsv" else ",")


def _lines(file: IO[bytes]) -> Iterator[Row]:
    """A text a line, the empty ones too."""
    for line in _bounded(file):
        text = _decoded(line.rstrip(b"\r\n"))
        yield text, {TEXT: text if isinstance(text, str) else None}, len(line)


def _whole_file(file: IO[bytes], path: Path) -> Iterator[Row]:
    data = file.read(MAX_ROW_BYTES + 1)
    name = str(path).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    text = NoText(f"{name} is larger than {MAX_ROW_BYTES} bytes") if len(data) > MAX_ROW_BYTES else _decoded(data)
    yield text, {PATH: name, TEXT: text if isinstance(text, str) else None}, len(data)


def _json_lines(file: IO[bytes], column: str | None) -> Iterator[Row]:
    """An object a line; empty lines are none."""
    for line in _bounded(file):
        if not line.strip():
            continue
        try:
            found = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            yield NoText("the line is no JSON"), {}, 0
            continue
        if not isinstance(found, dict):
            yield NoText("the line is no JSON object"), {}, 0
            continue
        column = column or text_column(found, [name for name, value in found.items() if isinstance(value, str)])
        yield text_of(found.get(column), column), found, len(line)


def _table(file: IO[bytes], column: str | None, delimiter: str) -> Iterator[Row]:
    """CSV with a line of names. CSV has no types: every column is one of strings, an id of 007 among them."""
    csv.field_size_limit(MAX_ROW_BYTES)
    text_file = io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="")
    reader = csv.reader(_shorter_lines(text_file), delimiter=delimiter, strict=True)
    try:
        names = next(reader, [])
        if len(set(names)) != len(names):
            raise BulkFailed("the first line names a column twice")
        column = column or text_column(names, names if len(names) == 1 else [])
        if column not in names:
            raise missing(column, names)
        for values in reader:
            if not values:
                continue
            if len(values) != len(names):
                raise BulkFailed(f"line {reader.line_num} has {len(values)} fields; the first line names {len(names)}")
            row = dict(zip(names, values, strict=True))
            text = row[column]
            yield (text if _is_unicode(text) else NOT_UTF8), _replaced(row), sum(map(len, values))
    except csv.Error as cause:
        raise BulkFailed(f"line {reader.line_num} is no CSV: {cause}") from cause
    finally:
        text_file.detach()  # which would close the file, whose position is asked for yet


def text_column(names: Mapping[str, Any] | Sequence[str], strings: Sequence[str]) -> str:
    """Which column holds the texts where nobody says. strings: the columns that could. Raises ConfigError."""
    if TEXT in names:
        return TEXT
    if len(strings) == 1:
        return strings[0]
    raise ConfigError(f"--column: say which one holds the texts; there are {_listed(names)}")


def missing(column: str, names: Mapping[str, Any] | Sequence[str]) -> ConfigError:
    return ConfigError(f"--column: there is no {column!r}; there are {_listed(names)}")


def text_of(value: object, column: str) -> str | NoText:
    """A value of the text's column as a text."""
    if isinstance(value, str):
        return value
    what = "null" if value is None else f"no string but {type(value).__name__}"
    return NoText(f"`{column}` is {what}")


def _listed(names: Mapping[str, Any] | Sequence[str]) -> str:
    shown = [repr(name) for name in list(names)[:20]]
    return ", ".join(shown) + (" ..." if len(names) > 20 else "") or "none"


def _bounded(file: IO[bytes]) -> Iterator[bytes]:
    while line := file.readline(MAX_ROW_BYTES + 1):
        if len(line) > MAX_ROW_BYTES:
            raise BulkFailed(f"a line is longer than {MAX_ROW_BYTES} bytes")
        yield line


def _shorter_lines(file: io.TextIOWrapper) -> Iterator[str]:
    while line := file.readline(MAX_ROW_BYTES + 1):
        if len(line) > MAX_ROW_BYTES:
            raise BulkFailed(f"a line is longer than {MAX_ROW_BYTES} characters")
        yield line


def _decoded(data: bytes) -> str | NoText:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return NOT_UTF8


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _replaced(row: Mapping[str, str]) -> Mapping[str, str]:
    """Bytes that are no UTF-8 as U+FFFD: the columns that are kept are written as UTF-8."""
    return {
        name: value if _is_unicode(value) else value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        for name, value in row.items()
    }
