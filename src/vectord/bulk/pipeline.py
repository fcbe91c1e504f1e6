"""Runs a job: many requests in flight, their vectors written in the order of the rows.

    reader (thread) ─▶ _submit: one task per request, within the in-flight limit ─▶ _collect: in order ─▶ PartWriter

Lives on one event loop. The in-flight limit bounds memory for an input of any length.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from vectord.budget import Budget
from vectord.bulk.embedder import BulkEmbedder, ModelFacts
from vectord.bulk.folder import JobFolder
from vectord.bulk.inputs import InputSource
from vectord.bulk.job import BulkFailed, BulkJob, Manifest, RetryLater, Stopped, Summary, TextsRefused
from vectord.bulk.outputs import BulkOutput, file_format_of
from vectord.bulk.progress import JobProgress
from vectord.bulk.rows import EmbeddedRows, InvalidText, RowLimits, Rows, TextChunk, chunk_rows
from vectord.bulk.writer import PartRows, PartWriter, divide
from vectord.errors import ConfigError
from vectord.schema import Span

T = TypeVar("T")

VERSION = 4  # of the manifest
COLUMNS_BYTES = 64 * 2**20  # of the columns that are kept in addition to the texts
REQUEST = RowLimits(rows=128, characters=64_000)
IN_FLIGHT = RowLimits(rows=16_384, characters=1_000_000, size_bytes=COLUMNS_BYTES)
# ColBERT vectors are a hundred times as large, and one response holds only a limited number.
COLBERT_REQUEST = RowLimits(rows=32, characters=16_000)
COLBERT_IN_FLIGHT = RowLimits(rows=2048, characters=256_000, size_bytes=COLUMNS_BYTES)

MILLION = 10**6

PROBE = "vectord"  # a text whose vectors show the model's vector space and widths before the job begins

FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 15.0  # between retries without Retry-After; doubles each time


class Retrying:
    """Retries the calls of a job. It gives up when none of them has succeeded for `patience_s`."""

    def __init__(self, patience_s: float, progress: JobProgress, stopped: asyncio.Future[int]) -> None:
        """stopped: the signal."""
        self._patience_s = patience_s
        self._progress = progress
        self._stopped = stopped
        self._succeeded_s = time.monotonic()

    async def call(self, call: Callable[[], Awaitable[T]]) -> T:
        """The result of `call`. Raises BulkFailed after giving up, Stopped after a signal."""
        wait_s = FIRST_WAIT_S
        while True:
            try:
                found = await call()
            except RetryLater as later:
                if time.monotonic() - self._succeeded_s > self._patience_s:
                    raise BulkFailed(f"No request succeeded for {self._patience_s:g} s: {later}") from later
                with self._progress.waiting(str(later)):
                    await asyncio.wait([self._stopped], timeout=min(later.retry_after_s or wait_s, LONGEST_WAIT_S))
                if self._stopped.done():
                    raise Stopped(self._stopped.result()) from None
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
            else:
                self._succeeded_s = time.monotonic()
                return found


class Pipeline:
    """A job. The constructor checks all that needs no model; it blocks, and connects to a database."""

    def __init__(self, source: InputSource) -> None:
        self._job = job = source.job
        self._source = source
        colbert = "colbert" in job.model_outputs
        self._limits = COLBERT_IN_FLIGHT if colbert else IN_FLIGHT
        self._in_flight = Budget(MILLION)
        self._request = COLBERT_REQUEST if colbert else REQUEST
        self._output = output_of(job)
        self._reading = source.read(self._request)
        try:
            first = next(self._reading, None)  # whether the column of the texts exists
            if first is None:
                raise BulkFailed("IN has no rows.")
            self._rows = self._output.begin(chain([first], self._reading))
        except BaseException:
            self._reading.close()
            self._output.close()
            raise
        self._reader = ThreadPoolExecutor(1, "vectord-bulk-read")
        self._submitted: asyncio.Queue[tuple[PartRows, asyncio.Task[list[EmbeddedRows]]] | None] = asyncio.Queue()
        self._stopped: asyncio.Future[int] | None = None  # the signal

    def check(self, facts: ModelFacts) -> None:
        """Raises ConfigError if the model does not read the rows, or OUT cannot hold its vectors. It need not be loaded
        yet."""
        if self._source.has_media and self._job.on_error == "fail" and "image" not in facts.modalities:
            way_out = "name one that reads images after OUT, as in --help"
            raise ConfigError(f"IN has images or PDFs, and the model {facts.model} reads texts only; {way_out}")
        self._output.check(facts)

    def stop(self, signal: int) -> None:
        """Makes `run` raise Stopped. Called on its event loop."""
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_result(signal)

    async def run(self, embedder: BulkEmbedder, progress: JobProgress, patience_s: float) -> Summary:
        """Returns when OUT is complete, or the parts of the shard.

        patience_s: how long the model or the database may be unavailable before the job fails.
        """
        self._embedder = embedder
        self._progress = progress
        self._stopped = asyncio.get_running_loop().create_future()
        self._retrying = Retrying(patience_s, progress, self._stopped)
        try:
            facts = await self._unless_stopped(self._retrying.call(embedder.facts))
            self.check(facts)
            probe = await self._unless_stopped(self._retrying.call(lambda: embedder.embed([PROBE])))
            if probe.failures:
                raise BulkFailed(f"The model cannot embed {PROBE!r}: {probe.failures[0]}")
            try:
                await self._unless_stopped(self._chunks([PROBE]))
            except TextsRefused as refused:
                raise ConfigError(f"--chunk: {refused}") from None
            manifest = Manifest(VERSION, self._source.identity, dict(self._job.options()), facts.model, probe.space)
            more = {**asdict(facts), "space": probe.space}
            starting = self._retrying.call(lambda: asyncio.to_thread(self._output.start, manifest, probe.widths, more))
            finished = await self._unless_stopped(starting)
            self._request = replace(self._request, rows=min(self._request.rows, max(1, facts.max_inputs)))
            return await self._run(manifest, set(finished))
        finally:
            self._output.close()
            self._reader.shutdown(wait=False, cancel_futures=True)  # it may block in a read of standard input
            with suppress(ValueError):  # it is reading: then the file is closed with the last reference
                self._reading.close()
            self._rows = iter(())

    async def _run(self, manifest: Manifest, finished: set[int]) -> Summary:
        if self._source.is_stdin:  # it may have ended within the last part, and have more rows now
            finished.discard(max(filter(self._job.has_part, finished), default=-1))
        summary = Summary(out=self._output.name, model=manifest.model, space=manifest.space)
        pieces = divide(self._rows, self._job, finished, self._request.rows, summary)
        writer = PartWriter(self._job, self._output, summary, self._retrying.call)
        self._started_s = time.monotonic()
        submitting = asyncio.create_task(self._submit(pieces, summary))
        try:
            await self._collect(writer, summary)
            await submitting
            await writer.finish()
        finally:
            tasks: list[asyncio.Task[Any]] = [submitting]
            while not self._submitted.empty():
                if (item := self._submitted.get_nowait()) is not None:
                    tasks.append(item[1])
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        seconds = time.monotonic() - self._started_s
        summary.seconds, summary.tokens_per_s = round(seconds, 3), round(summary.tokens / max(seconds, 1e-9), 1)
        summary.parts = -(-summary.rows // self._job.part_rows)
        summary.missing = await self._in_thread(lambda: self._output.complete(summary.parts))
        return summary

    # --- rows to requests -------------------------------------------------------------------------------------

    async def _submit(self, pieces: Iterator[PartRows], summary: Summary) -> None:
        """Starts a request for every group of rows of the missing parts, then submits None."""
        started = False
        try:
            while (piece := await self._in_thread(lambda: next(pieces, None))) is not None:
                new = await self._retrying.call(partial(self._in_thread, partial(self._output.new_rows, piece.rows)))
                summary.resumed_from += len(piece.rows) - len(new)
                if not started and len(new):
                    before = summary.resumed_from
                    self._progress.begin(new.position if before else 0, before)
                    self._started_s = time.monotonic()  # without the time that skipping the finished rows took
                    started = True
                await self._in_flight.wait(self._share(new))
                if self._stopped is not None and self._stopped.done():
                    raise Stopped(self._stopped.result())
                task = asyncio.create_task(self._embed(new))
                self._submitted.put_nowait((replace(piece, rows=new), task))
        finally:
            self._submitted.put_nowait(None)

    def _share(self, rows: Rows) -> int:
        """Of the limits in flight, in millionths."""
        limits = self._limits
        parts = len(rows) / limits.rows, rows.characters / limits.characters, rows.size_bytes / limits.size_bytes
        return int(MILLION * max(parts))

    async def _embed(self, rows: Rows) -> list[EmbeddedRows]:
        """In one request; chunks in as many as they need."""
        if self._job.chunk is None:
            return [await self._embed_request(rows)]
        found = iter(await self._split([text for text in rows.texts if isinstance(text, str)]))
        chunked = chunk_rows(rows, [next(found) if isinstance(text, str) else [TextChunk(text)] for text in rows.texts])
        return [await self._embed_request(request) for request in chunked.within(self._request)]

    async def _chunks(self, texts: Sequence[str]) -> list[Sequence[Span]]:
        if self._job.chunk is None or not texts:
            return []
        return await self._retrying.call(lambda: self._embedder.chunk(texts))

    async def _split(self, texts: Sequence[str]) -> list[list[TextChunk]]:
        """The chunks of each text. If the model refuses the texts, each half is tried, down to the texts at fault."""
        try:
            chunks = zip(texts, await self._chunks(texts), strict=True)
        except TextsRefused as refused:
            if len(texts) == 1:
                return [[TextChunk(InvalidText(str(refused)))]]
        else:
            return [[TextChunk(text[span.start : span.stop], span) for span in spans] for text, spans in chunks]
        half = len(texts) // 2
        return [*await self._split(texts[:half]), *await self._split(texts[half:])]

    async def _embed_request(self, rows: Rows) -> EmbeddedRows:
        places = [place for place, text in enumerate(rows.texts) if not isinstance(text, InvalidText)]
        texts = [text for text in rows.texts if not isinstance(text, InvalidText)]
        errors = {place: text.reason for place, text in enumerate(rows.texts) if isinstance(text, InvalidText)}
        if not texts:
            return EmbeddedRows(rows, None, [], errors)
        vectors = await self._retrying.call(lambda: self._embedder.embed(texts))
        return EmbeddedRows(rows, vectors, places, errors | {places[i]: why for i, why in vectors.failures.items()})

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._reader, call)

    # --- vectors to parts -------------------------------------------------------------------------------------

    async def _collect(self, writer: PartWriter, summary: Summary) -> None:
        rows = 0
        while True:
            if self._submitted.empty():
                item = await self._unless_stopped(self._submitted.get())
            else:
                item = self._submitted.get_nowait()
            if item is None:
                return
            piece, task = item
            await writer.add(piece, await self._unless_stopped(task))
            self._in_flight.release(self._share(piece.rows))
            rows += len(piece.rows)
            self._progress.advance(piece.rows.position, summary.resumed_from + rows, summary.tokens)

    async def _unless_stopped(self, awaitable: Awaitable[T]) -> T:
        """The result, which counts even after a signal if it is there."""
        assert self._stopped is not None
        future = asyncio.ensure_future(awaitable)
        if not future.done():
            both: list[asyncio.Future[Any]] = [future, self._stopped]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not future.done():
            future.cancel()
            raise Stopped(self._stopped.result())
        return future.result()


def output_of(job: BulkJob) -> BulkOutput:
    """Raises ConfigError if OUT exists, or cannot be reached."""
    if job.output_format == "postgres":
        from vectord.bulk.postgres import PostgresOutput  # noqa: PLC0415 - psycopg, an extra

        return PostgresOutput(job)
    if job.output_format == "qdrant":
        from vectord.bulk.qdrant import QdrantOutput  # noqa: PLC0415 - httpx

        return QdrantOutput(job)
    return JobFolder(job, file_format_of(job))
