"""Divides the rows of IN among parts, and writes the embedded ones to the folder of the job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from vectord.bulk.job import BulkFailed, BulkJob
from vectord.bulk.outputs import BulkOutput, PartFile
from vectord.bulk.rows import EmbeddedRows, Rows
from vectord.parts import PartFolder

T = TypeVar("T")

HELD_BYTES = 32 * 2**20  # of vectors and columns that are written at once, approximately


@dataclass(frozen=True, slots=True)
class PartRows:
    """Rows of one part."""

    part: int
    start: int  # index of the first row in IN
    rows: Rows


class Divider:
    """Iterates over the rows of the missing parts. The numbers count the rows that were read so far."""

    def __init__(self, job: BulkJob, finished: frozenset[int]) -> None:
        self.rows = 0  # all
        self.finished_rows = 0  # of parts that existed before
        self._job = job
        self._finished = finished

    @property
    def parts(self) -> int:
        return -(-self.rows // self._job.part_rows)

    def divide(self, reader: Iterator[Rows]) -> Iterator[PartRows]:
        """Runs in the reading thread."""
        for rows in reader:
            taken = 0
            while taken < len(rows):
                part, offset = divmod(self.rows, self._job.part_rows)
                count = min(len(rows) - taken, self._job.part_rows - offset)
                piece = PartRows(part, self.rows, rows.slice(taken, taken + count))
                taken += count
                self.rows += count
                if part in self._finished:
                    self.finished_rows += count
                elif self._job.has_part(part):
                    yield piece


class PartWriter:
    """Writes the pieces of the missing parts, in order. Lives on the event loop; encodes and writes in threads."""

    def __init__(self, job: BulkJob, folder: PartFolder, output: BulkOutput, space: str) -> None:
        """space: of the vectors."""
        self.tokens = self.cut = self.failed = 0
        self._job = job
        self._folder = folder
        self._output = output
        self._space = space
        self._index = 0  # of the part that is being written
        self._file: PartFile | None = None
        self._temporary: Path | None = None
        self._rows = 0  # of the part
        self._held: list[EmbeddedRows] = []
        self._held_start = self._held_bytes = 0

    async def add(self, piece: PartRows, embedded: EmbeddedRows) -> None:
        """Raises BulkFailed for another vector space, an error of the disk, and, with --on-error fail, a failed row."""
        vectors = embedded.vectors
        if vectors is not None and vectors.space != self._space:
            raise BulkFailed(
                f"The model has changed: its vectors belong to the space {vectors.space}, the earlier ones to "
                f"{self._space}."
            )
        if embedded.errors and self._job.on_error == "fail":
            row = min(embedded.errors)
            raise BulkFailed(
                f"Row {piece.start + row}, counted from 0: {embedded.errors[row]} "
                "(--on-error null continues without its vectors)"
            )
        if not self._held:
            self._held_start = piece.start
        self._index = piece.part
        self._held.append(embedded)
        self._rows += len(embedded.rows)
        self._held_bytes += embedded.rows.size_bytes
        self.failed += len(embedded.errors)
        if vectors is not None:
            self._held_bytes += vectors.size_bytes
            self.tokens += vectors.tokens
            self.cut += vectors.cut
        if self._rows == self._job.part_rows:
            await self.finish()
        elif self._held_bytes >= HELD_BYTES:
            await self._in_thread(self._write)

    async def finish(self) -> None:
        """Finish the part. Call it at the end of IN: the last part may have fewer rows than the others."""
        if self._rows:
            await self._in_thread(self._finish)

    async def discard(self) -> None:
        """Delete the unfinished part."""
        await self._in_thread(self._discard)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(call)
        except OSError as problem:
            raise BulkFailed(f"OUT cannot be written: {problem.strerror}.") from problem

    def _write(self) -> None:
        if self._file is None:
            self._temporary = self._folder.temporary()
            self._file = self._output.open(self._temporary)
        held, self._held, self._held_bytes = self._held, [], 0
        self._file.write(held, self._held_start)

    def _finish(self) -> None:
        self._write()
        assert self._file is not None and self._temporary is not None
        self._file.close()
        self._folder.add(self._temporary, self._index)
        self._file, self._rows = None, 0

    def _discard(self) -> None:
        if self._file is not None and self._temporary is not None:
            with suppress(Exception):  # such as a disk that is full
                self._file.close()
            self._temporary.unlink(missing_ok=True)
