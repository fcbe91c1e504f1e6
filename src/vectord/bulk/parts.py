"""Answers, in order, to the parts that are written. Lives on the event loop; a part's bytes are made in a thread."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Sequence

from vectord.bulk.failures import BulkFailed
from vectord.bulk.job import Job
from vectord.bulk.journal import Journal, Written
from vectord.bulk.outputs import Output
from vectord.bulk.rows import Embedded, digest_of

PART_ROWS = 4096
PART_BYTES = 32 * 2**20  # of vectors and columns, about
PART_S = 30.0  # what a kill may cost, beside what is under way


class PartWriter:
    def __init__(self, job: Job, journal: Journal, output: Output, dimensions: int) -> None:
        """dimensions: of dense vectors, as far as they are known before the first is there."""
        self._job = job
        self._journal = journal
        self._output = output
        self._width = dimensions
        self._token_width = 0
        self._part: list[Embedded] = []
        self._rows = self._bytes = 0
        self._space = journal.last.space
        self._began_s = self._part_began_s = time.monotonic()
        self._seconds_before = journal.last.seconds

    async def add(self, embedded: Embedded) -> None:
        """The next rows. Raises BulkFailed for vectors of another space, and, as the job says, for a failed row."""
        self._check_space(embedded)
        self._learn_widths(embedded)
        if embedded.errors and self._job.on_error == "fail":
            row = min(embedded.errors)
            self._take(embedded.until(row))
            raise BulkFailed(
                f"Row {self._journal.last.rows + self._rows}, counted from 0: {embedded.errors[row]} "
                "(--on-error null goes on without its vectors)"
            )
        self._take(embedded)
        is_late = time.monotonic() - self._part_began_s >= PART_S
        if self._rows >= PART_ROWS or self._bytes >= PART_BYTES or is_late:
            await self.flush()

    async def flush(self) -> None:
        """Write what is held as a part."""
        part, self._part = self._part, []
        self._rows = self._bytes = 0
        if part:
            await asyncio.to_thread(self._write, part)
        self._part_began_s = time.monotonic()

    def _take(self, embedded: Embedded) -> None:
        if not len(embedded.rows):  # those before a first row that failed
            return
        self._part.append(embedded)
        self._rows += len(embedded.rows)
        self._bytes += embedded.rows.size_bytes + (0 if embedded.answer is None else embedded.answer.size_bytes)

    def _check_space(self, embedded: Embedded) -> None:
        space = "" if embedded.answer is None else embedded.answer.space
        self._space = self._space or space
        if space and space != self._space:
            raise BulkFailed(
                f"The model has changed: its vectors are of the space {space}, those before of {self._space}."
            )

    def _learn_widths(self, embedded: Embedded) -> None:
        if embedded.answer is None:
            return
        if embedded.answer.dense is not None:
            self._width = embedded.answer.dense.shape[1]
        for rows in embedded.answer.colbert or ():
            self._token_width = rows.shape[1] or self._token_width

    def _write(self, part: Sequence[Embedded]) -> None:
        last = self._journal.last
        head, body = self._output.part(part, last.rows, self._width, self._token_width)
        texts = [text for one in part for text in one.rows.texts]
        answers = [one.answer for one in part if one.answer is not None]
        written = Written(
            rows=last.rows + len(texts),
            bytes=last.bytes + len(head) + len(body),
            tokens=last.tokens + sum(answer.tokens for answer in answers),
            cut=last.cut + sum(answer.cut for answer in answers),
            failed=last.failed + sum(len(one.errors) for one in part),
            seconds=self._seconds_before + time.monotonic() - self._began_s,
            space=self._space,
            part_rows=len(texts),
            texts=digest_of(texts),
            start=last.bytes + len(head),
            crc=zlib.crc32(body),
        )
        try:
            self._journal.add(head + body, written)
        except OSError as problem:  # the next start cuts off what was written of it
            raise BulkFailed(f"OUT cannot be written: {problem.strerror}.") from problem
