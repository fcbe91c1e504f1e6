"""The rows of --chunk: one for each chunk of a row's text. pipeline.py makes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from vectord.bulk.rows import RowInput, Rows
from vectord.schema import Span


class TextChunk(NamedTuple):
    """A part of a row's text; the whole of an image, or of a text that is invalid."""

    text: RowInput
    span: Span = Span(0, 0)


def chunk_rows(rows: Rows, chunks: Sequence[Sequence[TextChunk]]) -> Rows:
    """A row for each chunk, with the chunk's text in the column of the texts. chunks: of each row, at least one."""
    places: list[int] = []
    texts: list[RowInput] = []
    numbers: list[tuple[int, int, int, int]] = []
    for place, own in enumerate(chunks):
        for number, (text, span) in enumerate(own):
            places.append(place)
            texts.append(text)
            numbers.append((number, len(own), span.start, span.stop))
    taken = rows.take(places)
    columns = taken.columns
    if isinstance(columns, list):
        columns = [
            {**row, rows.text_column: text} if isinstance(text, str) else row
            for row, text in zip(columns, texts, strict=True)
        ]
    else:
        from vectord.bulk.arrow_input import with_texts  # noqa: PLC0415 - pyarrow, an extra

        columns = with_texts(columns, rows.text_column, [text if isinstance(text, str) else None for text in texts])
    size_bytes = rows.size_bytes * len(texts) // max(1, len(rows))  # the other columns are repeated
    return replace(taken, texts=texts, columns=columns, size_bytes=size_bytes, chunks=numbers)
