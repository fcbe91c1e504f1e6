"""A job from its first row to its last: many requests under way, their answers written in the order of the rows.

    reader (thread) ─▶ _ask: a task a request, while there is room ─▶ _take: in order ─▶ parts.py ─▶ journal (thread)

Lives on one event loop. What is held at once is bounded by characters and rows, however long the input is: rows are
read only when there is room for them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from vectord.bulk.embedder import Embedder, Facts
from vectord.bulk.failures import BulkFailed, Stopped
from vectord.bulk.inputs import TABLES, Source
from vectord.bulk.job import Job
from vectord.bulk.journal import VERSION, Begun, Journal, Place, open_journal
from vectord.bulk.outputs import WHOLE, Output, output_of
from vectord.bulk.parts import PartWriter
from vectord.bulk.patience import Patience
from vectord.bulk.progress import Progress
from vectord.bulk.resuming import rows_behind
from vectord.bulk.room import Room
from vectord.bulk.rows import Embedded, NoText, Rows
from vectord.bulk.text_rows import Limits, read_rows

T = TypeVar("T")

ROOM_BYTES = 64 * 2**20  # of the columns that are kept beside the texts
REQUEST = Limits(rows=128, characters=64_000)
ROOM = Limits(
    rows=16_384, characters=1_000_000, size_bytes=ROOM_BYTES
)  # under way: some 250,000 tokens, 10 s of two cores
# Vectors of tokens are a hundred times those of texts, and one answer may hold so many only.
TOKENS_REQUEST = Limits(rows=32, characters=16_000)
TOKENS_ROOM = Limits(rows=2048, characters=256_000, size_bytes=ROOM_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """rows, tokens, cut, failed: of the whole job, earlier runs too; seconds, tokens_per_s: of this run."""

    out: str
    model: str
    space: str
    rows: int
    tokens: int
    cut: int
    failed: int
    seconds: float
    tokens_per_s: float
    parts: int
    resumed_from: int  # rows that earlier runs had written


class Pipeline:
    def __init__(
        self, job: Job, source: Source, embedder: Embedder, progress: Progress, *, patience_s: float, restart: bool
    ) -> None:
        """patience_s: how long all requests may be put off before the job ends."""
        self._job = job
        self._source = source
        self._embedder = embedder
        self._progress = progress
        self._patience = Patience(patience_s, progress)
        self._restart = restart
        of_tokens = "colbert" in job.outputs
        self._request = TOKENS_REQUEST if of_tokens else REQUEST
        self._room = Room(TOKENS_ROOM if of_tokens else ROOM)
        self._reader = ThreadPoolExecutor(1, "vectord-bulk-read")
        self._asked: asyncio.Queue[tuple[Rows, asyncio.Task[Embedded]] | None] = asyncio.Queue()
        self._stopped: asyncio.Future[int] | None = None  # the signal

    def stop(self, signal: int) -> None:
        """Let `run` write what is answered and raise Stopped. Called on its loop."""
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_result(signal)

    async def run(self) -> Summary:
        """Until OUT is there. Raises BulkFailed, Stopped, ConfigError."""
        self._stopped = asyncio.get_running_loop().create_future()
        facts = await self._unless_stopped(asyncio.ensure_future(self._patience.ask(self._embedder.facts)))
        begun = Begun(VERSION, self._source.identity, dict(self._job.asked()), facts.model, facts.fingerprint)
        journal = open_journal(Place(self._job.out), begun, restart=self._restart)
        try:
            return await self._run(journal, facts)
        finally:
            journal.close()
            self._reader.shutdown(wait=False, cancel_futures=True)  # it may hang in a read of standard input

    async def _run(self, journal: Journal, facts: Facts) -> Summary:
        output = output_of(self._job, asdict(facts))
        self._request = replace(self._request, rows=max(1, min(self._request.rows, facts.max_inputs)))
        before = journal.last
        if before.rows:
            output.resume(journal.place.data)
        self._began_s = time.monotonic()
        await self._embed_all(journal, PartWriter(self._job, journal, output, self._job.dimensions or facts.dimensions))
        seconds = time.monotonic() - self._began_s
        if not journal.last.rows:
            raise BulkFailed("IN has no rows.")
        last = journal.last
        parts = len(journal.written)
        await self._in_thread(lambda: _deliver(journal, output))
        return Summary(
            out=str(self._job.out),
            model=facts.model,
            space=last.space,
            rows=last.rows,
            tokens=last.tokens,
            cut=last.cut,
            failed=last.failed,
            seconds=round(seconds, 3),
            tokens_per_s=round((last.tokens - before.tokens) / max(seconds, 1e-9), 1),
            parts=parts,
            resumed_from=before.rows,
        )

    async def _embed_all(self, journal: Journal, writer: PartWriter) -> None:
        asking = asyncio.create_task(self._ask(journal))
        try:
            await self._take(writer, journal.resumed_rows)
            await asking
        finally:
            await self._drop(asking)

    async def _drop(self, asking: asyncio.Task[None]) -> None:
        """Nobody wants what is still under way."""
        tasks: list[asyncio.Task[None] | asyncio.Task[Embedded]] = [asking]
        while not self._asked.empty():
            if (item := self._asked.get_nowait()) is not None:
                tasks.append(item[1])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- rows to requests -------------------------------------------------------------------------------------

    async def _ask(self, journal: Journal) -> None:
        """Every row that is not written yet, in requests; None behind the last."""
        before = journal.last.rows
        behind = rows_behind(list(journal.written), self._all_rows())
        begun = False
        try:
            while (rows := await self._in_thread(lambda: next(behind, None))) is not None:
                if not begun:
                    self._progress.begin(rows.position if before else 0, before)
                    self._began_s = time.monotonic()  # skipping what is written is no work of the model's
                    begun = True
                await self._room.take(rows)
                if self._stopped is not None and self._stopped.done():
                    raise Stopped(self._stopped.result())
                self._asked.put_nowait((rows, asyncio.create_task(self._embed(rows))))
        finally:
            self._asked.put_nowait(None)

    def _all_rows(self) -> Iterator[Rows]:
        if self._source.format in TABLES:
            from vectord.bulk.arrow.reading import read_tables  # noqa: PLC0415 - pyarrow, an extra

            return read_tables(self._source, self._job.column, self._request)
        return read_rows(self._source, self._job.column, self._request)

    async def _embed(self, rows: Rows) -> Embedded:
        places = [place for place, text in enumerate(rows.texts) if isinstance(text, str)]
        texts = [text for text in rows.texts if isinstance(text, str)]
        errors = {place: text.why for place, text in enumerate(rows.texts) if isinstance(text, NoText)}
        if not texts:
            return Embedded(rows, None, [], errors)
        answer = await self._patience.ask(lambda: self._embedder.embed(texts))
        return Embedded(rows, answer, places, errors | {places[i]: why for i, why in answer.failures.items()})

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._reader, call)

    # --- answers to parts -------------------------------------------------------------------------------------

    async def _take(self, writer: PartWriter, rows: int) -> None:
        """rows: that were written before this run."""
        tokens = 0
        try:
            while (item := await self._next_asked()) is not None:
                asked, task = item
                embedded = await self._unless_stopped(task)
                await writer.add(embedded)
                self._room.give(asked)
                rows += len(asked)
                tokens += 0 if embedded.answer is None else embedded.answer.tokens
                self._progress.advance(asked.position, rows, tokens)
        finally:
            await writer.flush()

    async def _next_asked(self) -> tuple[Rows, asyncio.Task[Embedded]] | None:
        if not self._asked.empty():
            return self._asked.get_nowait()
        return await self._unless_stopped(asyncio.ensure_future(self._asked.get()))

    async def _unless_stopped(self, future: asyncio.Future[T]) -> T:
        """Its result; what is answered already is taken also after a signal. Raises Stopped."""
        assert self._stopped is not None
        if not future.done():
            both: list[asyncio.Future[Any]] = [future, self._stopped]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not future.done():
            future.cancel()
            raise Stopped(self._stopped.result())
        return future.result()


def _deliver(journal: Journal, output: Output) -> None:
    try:
        whole = output.finish(journal.place.data, journal.place.folder / WHOLE)
        journal.deliver(whole)
    except OSError as problem:
        raise BulkFailed(f"OUT cannot be written: {problem.strerror}.") from problem
