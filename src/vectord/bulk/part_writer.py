"""Groups embedded rows into parts and writes them. Lives on the event loop; encoding and writing run in a thread."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Sequence

from vectord.bulk.job import BulkFailed, BulkJob
from vectord.bulk.journal import Journal, PartRecord
from vectord.bulk.outputs import Output
from vectord.bulk.rows import EmbeddedRows, digest_of

PART_ROWS = 4096
PART_BYTES = 32 * 2**20  # of vectors and columns, approximately
PART_S = 30.0  # a kill loses at most this much work, and the requests in flight


class PartWriter:
    def __init__(self, job: BulkJob, journal: Journal, output: Output, dimensions: int) -> None:
        """dimensions: of dense vectors, as the model reports them; used for parts without vectors."""
        self._job = job
        self._journal = journal
        self._output = output
        self._width = dimensions
        self._token_width = 0
        self._part: list[EmbeddedRows] = []
        self._rows = self._bytes = 0
        self._space = journal.last.space
        self._started_s = self._part_started_s = time.monotonic()
        self._seconds_before = journal.last.seconds

    async def add(self, embedded: EmbeddedRows) -> None:
        """The next rows. Raises BulkFailed for another vector space, and with --on-error fail for a failed row."""
        self._check_space(embedded)
        self._learn_widths(embedded)
        if embedded.errors and self._job.on_error == "fail":
            row = min(embedded.errors)
            self._hold(embedded.until(row))
            raise BulkFailed(
                f"Row {self._journal.last.rows + self._rows}, counted from 0: {embedded.errors[row]} "
                "(--on-error null continues without its vectors)"
            )
        self._hold(embedded)
        is_late = time.monotonic() - self._part_started_s >= PART_S
        if self._rows >= PART_ROWS or self._bytes >= PART_BYTES or is_late:
            await self.flush()

    async def flush(self) -> None:
        """Write the held rows as a part."""
        part, self._part = self._part, []
        self._rows = self._bytes = 0
        if part:
            await asyncio.to_thread(self._write, part)
        self._part_started_s = time.monotonic()

    def _hold(self, embedded: EmbeddedRows) -> None:
        if len(embedded.rows):
            self._part.append(embedded)
            self._rows += len(embedded.rows)
            self._bytes += embedded.rows.size_bytes + (embedded.vectors.size_bytes if embedded.vectors else 0)

    def _check_space(self, embedded: EmbeddedRows) -> None:
        space = "" if embedded.vectors is None else embedded.vectors.space
        self._space = self._space or space
        if space and space != self._space:
            raise BulkFailed(
                f"The model has changed: its vectors belong to the space {space}, the earlier ones to {self._space}."
            )

    def _learn_widths(self, embedded: EmbeddedRows) -> None:
        if embedded.vectors is None:
            return
        if embedded.vectors.dense is not None:
            self._width = embedded.vectors.dense.shape[1]
        for rows in embedded.vectors.colbert or ():
            self._token_width = rows.shape[1] or self._token_width

    def _write(self, part: Sequence[EmbeddedRows]) -> None:
        last = self._journal.last
        head, body = self._output.part(part, last.rows, self._width, self._token_width)
        texts = [text for one in part for text in one.rows.texts]
        vectors = [one.vectors for one in part if one.vectors is not None]
        record = PartRecord(
            rows=last.rows + len(texts),
            bytes=last.bytes + len(head) + len(body),
            tokens=last.tokens + sum(one.tokens for one in vectors),
            cut=last.cut + sum(one.cut for one in vectors),
            failed=last.failed + sum(len(one.errors) for one in part),
            seconds=self._seconds_before + time.monotonic() - self._started_s,
            space=self._space,
            part_rows=len(texts),
            texts=digest_of(texts),
            start=last.bytes + len(head),
            crc=zlib.crc32(body),
        )
        try:
            self._journal.add(head + body, record)
        except OSError as problem:  # the next start removes the incomplete part
            raise BulkFailed(f"OUT cannot be written: {problem.strerror}.") from problem
