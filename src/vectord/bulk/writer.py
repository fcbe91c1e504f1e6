"""Divides the rows of IN among parts, and gives the embedded ones to the output."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from vectord.bulk.inputs import PATH
from vectord.bulk.job import BulkFailed, BulkJob, Summary
from vectord.bulk.outputs import BulkOutput
from vectord.bulk.rows import EmbeddedRows, InvalidText, RowInput, Rows

Write: TypeAlias = Callable[[], Awaitable[None]]

HELD_BYTES = 32 * 2**20  # of vectors and columns that are written at once, approximately
EMPTY = InvalidText("the text is empty")


@dataclass(frozen=True, slots=True)
class PartRows:
    """Rows of one part."""

    part: int
    count: int  # of these rows in IN, those that --on-empty skips included
    rows: Rows


def divide(
    reader: Iterator[Rows], job: BulkJob, finished: Collection[int], max_rows: int, summary: Summary
) -> Iterator[PartRows]:
    """The rows of the missing parts, after --on-empty; counts all rows that were read. Runs in the reading thread.

    max_rows: of a piece.
    """
    for rows in reader:
        taken = 0
        while taken < len(rows):
            part, offset = divmod(summary.rows, job.part_rows)
            count = min(len(rows) - taken, job.part_rows - offset, max_rows)
            numbers = range(summary.rows, summary.rows + count)
            piece = replace(rows.slice(taken, taken + count), numbers=numbers)
            taken += count
            summary.rows += count
            if part in finished:
                summary.resumed_from += count
            elif job.has_part(part):
                empty = {place for place, text in enumerate(piece.texts) if _is_empty(text)}
                summary.empty += len(empty)
                if empty and job.on_empty == "skip":
                    piece = piece.take([place for place in range(count) if place not in empty])
                elif empty and job.on_empty == "fail":  # null has a reason already
                    texts = [EMPTY if isinstance(text, str) and _is_empty(text) else text for text in piece.texts]
                    piece = replace(piece, texts=texts)
                yield PartRows(part, count, piece)


def _is_empty(text: RowInput) -> bool:
    return text.is_null if isinstance(text, InvalidText) else isinstance(text, str) and (not text or text.isspace())


class PartWriter:
    """Writes the pieces of the missing parts, in order. Lives on the event loop; the output works in threads."""

    def __init__(
        self, job: BulkJob, output: BulkOutput, summary: Summary, retry: Callable[[Write], Awaitable[None]]
    ) -> None:
        """summary: counts what is written. retry: calls again after RetryLater."""
        self._job = job
        self._output = output
        self._summary = summary
        self._retry = retry
        self._part = 0  # that is being written
        self._rows = 0  # of IN, in the part
        self._held: list[EmbeddedRows] = []
        self._held_bytes = 0

    async def add(self, piece: PartRows, requests: Sequence[EmbeddedRows]) -> None:
        """Raises BulkFailed for another vector space, an error of the output, or a failed row with --on-error fail."""
        for embedded in requests:
            self._hold(embedded)
        self._part = piece.part
        self._rows += piece.count
        self._summary.failed += len({one.rows.numbers[row] for one in requests for row in one.errors})
        if self._rows == self._job.part_rows:
            await self.finish()
        elif self._held_bytes >= HELD_BYTES:
            await self._write()

    def _hold(self, embedded: EmbeddedRows) -> None:
        vectors = embedded.vectors
        if vectors is not None and vectors.space != self._summary.space:
            raise BulkFailed(
                f"The model has changed: its vectors belong to the space {vectors.space}, the earlier ones to "
                f"{self._summary.space}."
            )
        if embedded.errors and self._job.on_error == "fail":
            row = min(embedded.errors)
            path = embedded.rows.mappings()[row].get(PATH)
            name = f" ({path})" if path else ""
            raise BulkFailed(
                f"Row {embedded.rows.numbers[row]}{name}, counted from 0: {embedded.errors[row]} "
                "(--on-error null continues without its vectors)"
            )
        self._held.append(embedded)
        self._held_bytes += embedded.rows.size_bytes
        self._summary.chunks += len(embedded.rows.chunks)
        if vectors is not None:
            self._held_bytes += vectors.size_bytes
            self._summary.tokens += vectors.tokens
            self._summary.cut += vectors.cut

    async def finish(self) -> None:
        """Finish the part. Call it at the end of IN: the last part may have fewer rows than the others."""
        if self._rows:
            await self._write()
            await asyncio.to_thread(self._output.finish, self._part)
            self._rows = 0

    async def _write(self) -> None:
        await self._retry(lambda: asyncio.to_thread(self._output.write, self._part, self._held))
        self._held, self._held_bytes = [], 0
