"""The rows of the input that are not written yet. Runs in the thread that reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vectord.bulk.failures import BulkFailed
from vectord.bulk.journal import Written
from vectord.bulk.rows import NoText, Rows, digest_of


def rows_behind(written: Sequence[Written], reader: Iterator[Rows]) -> Iterator[Rows]:
    """What `reader` gives behind the parts that are written, whose texts must be those that were read then.

    Raises BulkFailed where they are not: the vectors would stand beside other texts.
    """
    held: Rows | None = None
    for part in written:
        texts: list[str | NoText] = []
        while len(texts) < part.part_rows:
            rows = next(reader, None) if held is None else held
            if rows is None:
                raise BulkFailed("IN has fewer rows than when this job was begun; --restart starts anew.")
            count = min(len(rows), part.part_rows - len(texts))
            texts += rows.texts[:count]
            held = rows.cut(count, len(rows)) if count < len(rows) else None
        if digest_of(texts) != part.texts:
            raise BulkFailed("IN has other texts than when this job was begun; --restart starts anew.")
    if held is not None:
        yield held
    yield from reader
