"""Rows of images and PDFs: the files that a column names, and a row for each page of a PDF. In the reading thread."""

from __future__ import annotations

from binascii import a2b_base64
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from vectord.bulk.embedder import error_of_row
from vectord.bulk.job import PAGE, BulkFailed, BulkJob, already_has
from vectord.bulk.rows import MAX_ROW_BYTES, InvalidText, RowInput, RowLimits, Rows
from vectord.errors import InvalidRequest, VectordError
from vectord.schema import PDF, Media
from vectord.text.pdf import is_pdf, pages_of

READ_ROWS = 16  # rows whose files are read at once


def media_of(data: bytes, name: str) -> Media | InvalidText:
    """An image or a PDF. name: for errors."""
    if len(data) > MAX_ROW_BYTES:
        return InvalidText(f"{name} is larger than {MAX_ROW_BYTES} bytes")
    return Media(data, type=PDF if is_pdf(data) else "image/*")


def value_of_file(value: object) -> object:
    """The bytes or the path in a value of an image column of Hugging Face's datasets; others unchanged."""
    return value.get("bytes") or value.get("path") if isinstance(value, Mapping) else value


def with_media(reading: Generator[Rows, None, None], job: BulkJob, limits: RowLimits) -> Generator[Rows, None, None]:
    """The rows in groups within the limits: with the files that they name, and one for each page of a PDF.

    Raises BulkFailed, also if IN has a column with the name of the added one.
    """
    with closing(reading):
        for group in reading:
            for start in range(0, len(group), READ_ROWS):
                rows = group.slice(start, min(start + READ_ROWS, len(group)))
                if job.images:
                    texts = [_file_of(text, job.source) if isinstance(text, str) else text for text in rows.texts]
                    rows = replace(rows, texts=texts)
                yield from _by_page(rows, job.name_of(PAGE)).within(limits)


def _file_of(named: str, source: str) -> Media | InvalidText:
    """named: a data URI, or a path from the folder of IN."""
    try:
        if named.startswith("data:"):
            return media_of(a2b_base64(named.partition("base64,")[2], strict_mode=True), "the image")
        if "://" in source:
            return InvalidText(f"{named} is not read: IN is in a store")
        folder = Path(source) if Path(source).is_dir() else Path(source).parent
        with (folder / named).open("rb") as file:
            return media_of(file.read(MAX_ROW_BYTES + 1), named)
    except OSError as cause:
        return InvalidText(f"{named} cannot be read: {cause.strerror}")
    except ValueError as cause:  # of base64; or the path has a NUL
        return InvalidText(f"the image cannot be read: {cause}")


def _by_page(rows: Rows, column: str) -> Rows:
    """A row for each page of a PDF, whose number is in the column: 1 if the row is no PDF."""
    places: list[int] = []
    texts: list[RowInput] = []
    for place, text in enumerate(rows.texts):
        pages: Sequence[RowInput] = [text]
        if isinstance(text, Media) and text.has_pages:
            try:
                pages = pages_of(text)
            except InvalidRequest as error:
                pages = [InvalidText(error_of_row(error))]
            except VectordError as error:  # a package is missing
                raise BulkFailed(error.message) from None
        places += [place] * len(pages)
        texts += pages
    numbers = [text.page or 1 if isinstance(text, Media) else 1 for text in texts]
    columns = rows.take(places).columns
    if isinstance(columns, list):
        if any(column in row for row in columns):
            raise already_has(column)
        columns = [{**row, column: number} for row, number in zip(columns, numbers, strict=True)]
    else:
        from vectord.bulk.arrow_input import with_column  # noqa: PLC0415 - pyarrow, an extra

        columns = with_column(columns, column, numbers)
    size_bytes = rows.size_bytes + sum(len(text.data) for text in rows.texts if isinstance(text, Media))
    return replace(rows, texts=texts, columns=columns, size_bytes=size_bytes)
