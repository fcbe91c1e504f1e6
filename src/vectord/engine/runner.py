"""One loaded model at work: texts in, rows out. Lives on the event loop; engine.py calls it.

encode ── EncoderPool ──> tokens
rows ──> cache ──> admission ──> Items ──> Worker ~~> deliver ──> Job ──> rows
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from vectord.artifacts.spec import ModelSpec
from vectord.backends.base import Backend
from vectord.config import EngineConfig
from vectord.engine.admission import Speed, check_room, check_wait
from vectord.engine.batch import Item, Key, Output
from vectord.engine.cache import VectorCache, cache_key
from vectord.engine.encoding import EncodedText, Encoder, EncoderPool
from vectord.engine.execution import Execution
from vectord.engine.job import Job
from vectord.engine.observer import Observer
from vectord.engine.scheduler import Scheduler
from vectord.engine.worker import Outcome, Worker
from vectord.errors import InferenceFailed, Unavailable
from vectord.schema import Caller, Float32, Input, Lane, TextOptions

SHUT_DOWN = "The server has shut down."
CLOSE_TIMEOUT_S = 5.0  # how long closing waits for a forward that runs
CHUNK = 512  # texts the loop handles at a stretch before others get their turn: 2 to 3 ms


Unknown: TypeAlias = tuple[int, EncodedText, Key | None]  # index, text, key


@dataclass(frozen=True, slots=True)
class Ran:
    rows: Float32 | Sequence[Float32]  # dense: (N, D), raw; tokens: N arrays (n, H)
    queue_s: float  # means over the texts
    inference_s: float


class ModelRunner:
    """Owns the model's worker, its measured speed, and its share of the common cache."""

    def __init__(
        self,
        name: str,
        spec: ModelSpec,
        encoder: Encoder,
        backend: Backend,
        *,
        config: EngineConfig,
        max_batch_requests: int | None,
        pool: EncoderPool,
        cache: VectorCache,
        observer: Observer,
        stalled_changed: Callable[[bool], None],
        queue_changed: Callable[[], None],
    ) -> None:
        """queue_changed: called on the loop when texts came or went; stalled_changed: see Worker."""
        self.encoder = encoder
        self.backend = backend
        self._name = name
        self._spec = spec
        self._config = config
        self._pool = pool
        self._cache = cache
        self._observer = observer
        self._queue_changed = queue_changed
        self._jobs: set[Job] = set()
        self._stopped = False
        self._speed = Speed(backend.facts.streams)
        scheduler = Scheduler(
            max_batch_tokens=backend.facts.max_batch_tokens,
            cost=backend.facts.cost,
            max_batch_requests=max_batch_requests,
            max_age_s=config.max_age_s,
            batch_window_s=config.batch_window_ms / 1000,
        )
        loop = asyncio.get_running_loop()
        self._worker = Worker(
            name,
            Execution(backend, spec.dimensions),
            scheduler,
            loop,
            streams=backend.facts.streams,
            deliver=self._deliver,
            stalled_changed=stalled_changed,
        )
        self._worker.start()

    @property
    def stalled(self) -> bool:
        return self._worker.stalled

    def queued(self) -> tuple[int, int]:
        """Texts and tokens that wait."""
        return self._worker.queued()

    async def encode(self, inputs: Sequence[Input], options: TextOptions, field: str) -> list[EncodedText]:
        said = (options.truncate, self._config.auto_truncate, options.truncate_by_default)
        truncate = next(choice for choice in said if choice is not None)
        return await self._pool.encode(self.encoder, inputs, options, truncate=truncate, field=field)

    def check_wait(self, caller: Caller) -> None:
        """Raises Overloaded if even one token more would wait too long: asked before tokens are made of the texts."""
        self._admit(caller.lane or "interactive", caller.client, 1)

    async def rows(
        self, encoded: Sequence[EncodedText], output: Output, caller: Caller, field: str, *, fresh: bool = False
    ) -> Ran:
        """All rows in order. Cancelling takes what still waits out of the queue.

        fresh: run every text, whatever the cache knows or others wait for. Raises Overloaded, InferenceFailed with
        the index, and Unavailable when the engine closes first.
        """
        if self._stopped:
            raise Unavailable(SHUT_DOWN)
        job = Job(len(encoded), output, self._spec.dimensions, field, self._worker.now_s())
        self._jobs.add(job)
        try:
            shares = output == "dense" and self._cache.enabled and not fresh
            unknown = await self._fill_from_cache(job, encoded) if shares else _all_unknown(encoded)
            if unknown:
                lane = caller.lane or self._lane(encoded)
                self._admit(lane, caller.client, sum(len(text.ids) for _, text, _ in unknown))
                await self._queue(job, unknown, output, lane, caller.client)
            rows = await job.rows()
        except BaseException:
            self._abandon(job)
            raise
        finally:
            self._jobs.discard(job)
            job.items.clear()  # they point back here: without this the rows would wait for the garbage collector
        return Ran(rows, job.queue_s / len(encoded), job.inference_s / len(encoded))

    def stop(self) -> None:
        """Run nothing more; whoever still waits gets Unavailable."""
        self._stopped = True
        self._worker.stop()
        for job in self._jobs:
            job.end(Unavailable(SHUT_DOWN))

    def close(self, timeout_s: float) -> bool:
        """Blocks until the threads have ended, then closes the backend; False if one is still in a forward."""
        ended = self._worker.join(timeout_s)
        if ended:
            self.backend.close()
        return ended

    # --- on the way in ----------------------------------------------------------------------------------------

    def _lane(self, encoded: Sequence[EncodedText]) -> Lane:
        return "bulk" if sum(len(text.ids) for text in encoded) > self._config.bulk_tokens else "interactive"

    async def _fill_from_cache(self, job: Job, encoded: Sequence[EncodedText]) -> list[Unknown]:
        """What the cache does not know."""
        unknown: list[Unknown] = []
        for index, text in enumerate(encoded):
            if index and index % CHUNK == 0:
                await asyncio.sleep(0)
            key = cache_key(self._spec.fingerprint, text.ids, text.type_ids)
            row = self._cache.get(key)
            if row is None:
                unknown.append((index, text, key))
            else:
                job.fill_known(index, row)
        self._observer.cache_looked_up(self._name, len(encoded) - len(unknown), len(unknown))
        return unknown

    def _admit(self, lane: Lane, client: str, tokens: int) -> None:
        _, queued_tokens = self._worker.queued()
        speed = self._speed.tokens_per_s
        check_room(queued_tokens, tokens, speed)
        if queued_tokens / speed > self._config.max_queue_wait_s:
            check_wait(self._worker.tokens_ahead(lane, client, tokens), speed, self._config.max_queue_wait_s)

    async def _queue(self, job: Job, texts: Sequence[Unknown], output: Output, lane: Lane, client: str) -> None:
        for start in range(0, len(texts), CHUNK):
            if start:
                await asyncio.sleep(0)
            if job.over:  # one of the first texts has failed already
                return
            items: list[Item] = []
            for index, text, key in texts[start : start + CHUNK]:
                item = self._join(key, lane, client)
                if item is None:
                    ids = text.ids
                    item = Item(ids, text.type_ids, len(ids), output, client, lane, key)
                    items.append(item)
                    if key is not None:
                        self._cache.start(key, item)
                job.wait_for(item, index)
            if items:
                self._worker.put(items)
        self._queue_changed()

    def _join(self, key: Key | None, lane: Lane, client: str) -> Item | None:
        """The same text under way, if there is one; drawn into the interactive lane by a caller who is there."""
        item = None if key is None else self._cache.under_way(key)
        if item is not None and item.lane == "bulk" and lane == "interactive":
            self._worker.promote(item, client)
        return item

    def _abandon(self, job: Job) -> None:
        cancelled = self._worker.cancel(job.leave())
        for item in cancelled:  # what runs already goes on, and the cache keeps its row
            if item.key is not None:
                self._cache.abandon(item.key, item)
        if cancelled:
            self._queue_changed()

    # --- on the way back --------------------------------------------------------------------------------------

    def _deliver(self, outcome: Outcome) -> None:
        failed = False
        for item, answer in zip(outcome.batch.items, outcome.answers, strict=True):
            if isinstance(answer, np.ndarray):
                self._fill(item, answer, outcome)
            else:
                failed = True
                self._fail(item, answer)
        batch = outcome.batch
        seconds = outcome.ended_s - outcome.started_s
        if batch.pressed and not failed:
            self._speed.ran(batch.tokens, seconds)
        budget = self.backend.facts.max_batch_tokens
        self._observer.batch_ran(self._name, len(batch.items), batch.tokens, budget, seconds, failed)
        self._queue_changed()

    def _fill(self, item: Item, row: Float32, outcome: Outcome) -> None:
        if item.key is not None:
            self._cache.finish(item.key, item, row)
        for waiter, index in item.waiters:
            waiter.fill(index, row, outcome.started_s, outcome.ended_s)

    def _fail(self, item: Item, error: InferenceFailed) -> None:
        if item.key is not None:
            self._cache.abandon(item.key, item)
        for waiter, index in item.waiters:
            waiter.fail(index, error)


def _all_unknown(encoded: Sequence[EncodedText]) -> list[Unknown]:
    return [(index, text, None) for index, text in enumerate(encoded)]
