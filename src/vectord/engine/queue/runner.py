"""One loaded model: texts in, answers out. Belongs to the event loop; operations call `run`.

run ──> ModelCache.look_up ──> admission ──> Items ──> Worker ~~> deliver ──> Job ──> answers
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

import msgspec
import numpy as np
from msgspec.structs import replace

from vectord.checkpoints.spec import ModelSpec
from vectord.compute.backends.base import Backend, BackendFacts
from vectord.config import EngineConfig
from vectord.engine.cache.lookup import TEXTS_PER_STEP, ModelCache
from vectord.engine.events import BatchRan, Observer
from vectord.engine.queue.admission import SHUT_DOWN, Speed, check_room, check_wait
from vectord.engine.queue.batch import Answer, Answers, CacheKey, Item, Job
from vectord.engine.queue.devices import Device
from vectord.engine.queue.execution import Execution
from vectord.engine.queue.scheduler import BULK_TOKENS, BatchLimits, Scheduler
from vectord.engine.queue.worker import BatchOutcome, Worker
from vectord.errors import InferenceFailed, Unavailable, VectordError
from vectord.housekeeping import GuardedLogger, Housekeeping
from vectord.schema import AnswerKind, Caller, Float32, Int32, Lane
from vectord.text.sequence import Encoder, Texts, Tokenizer

logger = GuardedLogger(logging.getLogger("vectord.engine"))

CLOSE_TIMEOUT_S = 5.0  # how long closing waits for a running forward or a compiling backend
WATCH_S = 1.0  # the longest time between two checks for hung forwards
ALONE_TOKENS = 64  # of a text that a caller's thread may run: other texts wait for it, and it has no timeout


class RunResult(msgspec.Struct, frozen=True):
    answers: Answers  # of all texts, in order
    failures: Mapping[int, VectordError] = {}  # index -> error; its answers have no meaning
    # As in Timings; inf and -inf if every text hit the cache.
    queued_s: float = math.inf
    first_s: float = math.inf
    last_s: float = -math.inf
    device: str = ""  # the devices of the model, each once: cuda:0,cuda:1

    def rows(self, kind: AnswerKind) -> Float32:
        """The dense vectors or scores of all spans of all texts, in a new array: (M, D)."""
        rows = self.answers[kind]
        return rows if isinstance(rows, np.ndarray) else np.concatenate(rows)

    def each(self, kind: AnswerKind) -> list[Any]:
        """The answers of one kind, one per text. Of dense vectors and scores: one per row, (1, D)."""
        rows = self.answers[kind]
        return [*rows[:, None]] if isinstance(rows, np.ndarray) else rows


NOTHING_RAN = RunResult(answers={})


class ModelRunner:
    """Owns the model's worker (queue and devices), its measured speed, and the requests that wait for it."""

    def __init__(
        self,
        name: str,
        spec: ModelSpec,
        encoder: Encoder,
        backends: Sequence[Backend],
        *,
        config: EngineConfig,
        max_batch_texts: int | None,
        cache: ModelCache,
        observer: Observer,
        stalled_changed: Callable[[bool], None],
        queue_changed: Callable[[], None],
        use_images: Callable[[], AbstractAsyncContextManager[ModelRunner]] | None = None,
    ) -> None:
        """backends: one per device, of one kind and dtype. queue_changed: called on the loop after each change of the
        queue; stalled_changed: see Worker. use_images: acquires the model's network for images."""
        self.encoder = encoder
        self.backends = backends
        self.facts = _together([backend.facts for backend in backends])
        self.spec = spec
        self.kinds = frozenset(spec.kinds)
        self.use_images = use_images
        self.auto_truncate = config.auto_truncate
        self._name = name
        self._config = config
        self._cache = cache
        self._observer = observer
        self._queue_changed = queue_changed
        self._max_batch_texts = _least(max_batch_texts, self.facts.max_batch_texts)
        self._housekeeping = Housekeeping(f"keeping the answers of {name}")
        self._jobs: set[Job] = set()
        self._stopped = False
        self._stalled_changed = stalled_changed
        self._speed = Speed(self.facts.streams)
        self._joins_requests = config.joins_requests
        pairs = config.max_reranking_batch_size if spec.reranks else None
        if spec.yes_no is not None:
            pairs = _least(pairs, config.qwen_rerank_batch_size)
        forward_timeout_s = config.forward_timeout_s
        if config.gpu_forward_timeout_s is not None and self.facts.device != "cpu":
            forward_timeout_s = config.gpu_forward_timeout_s
        if spec.reranks and config.rerank_timeout_s is not None:
            forward_timeout_s = config.rerank_timeout_s
        scheduler = Scheduler(
            [_limits(backend.facts, _least(max_batch_texts, pairs)) for backend in backends],
            batch_window_s=config.batch_window_ms / 1000,
        )
        loop = asyncio.get_running_loop()
        names = _names([backend.facts.device for backend in backends])
        self.worker = Worker(
            name,
            [
                Device(
                    index,
                    names[index],
                    Execution(backend, spec, encoder.special_ids),
                    backend.facts.streams,
                    backend.facts.pipelined,
                )
                for index, backend in enumerate(backends)
            ],
            scheduler,
            loop,
            forward_timeout_s=forward_timeout_s,
            deliver=self._deliver,
            stalled_changed=self._devices_changed,
        )
        self.worker.start()
        self._watch_s = min(WATCH_S, forward_timeout_s / 4)
        self._watching = loop.call_later(self._watch_s, self._watch) if forward_timeout_s else None

    @property
    def tokenizer(self) -> Tokenizer:
        """The encoder, of a network that reads texts."""
        return cast("Tokenizer", self.encoder)

    def embeds(self) -> tuple[set[int], set[int]]:
        """The requests for vectors with queued texts, and those whose texts all run. A composite's request has the same
        number in each runner."""
        # A request's texts are taken in order, so its last one shows whether any is left.
        jobs = [job for job in self._jobs if (job.items or job.joined) and "scores" not in job.kinds]
        are_queued = self.worker.are_queued([_last(job) for job in jobs])
        queued = {id(job.caller) for job, is_queued in zip(jobs, are_queued, strict=True) if is_queued}
        return queued, {id(job.caller) for job in jobs if job.is_queued_whole} - queued

    def wait_s(self) -> float:
        """How long the queue will take; 0 until the device was busy once and its speed is known."""
        return self.worker.queued_tokens() / self._speed.tokens_per_s

    def check_wait(self, lane: Lane, caller: Caller, tokens: int = 1, *, entered: bool = False) -> None:
        """Raises Overloaded if the queue has no room for `tokens` more, or, unless `entered`, if they would wait too
        long."""
        queued_tokens = self.worker.queued_tokens()
        if not queued_tokens:
            return
        speed = self._speed.tokens_per_s
        check_room(queued_tokens, tokens, speed)
        max_wait_s = self._config.max_queue_wait_s
        if caller.deadline_s is not None:  # a request that would be late is refused
            max_wait_s = max(0.0, min(max_wait_s, caller.deadline_s - time.monotonic()))
        if not entered and queued_tokens / speed > max_wait_s:
            check_wait(self.worker.tokens_ahead(lane, caller.client, tokens), speed, max_wait_s)

    async def run(
        self,
        texts: Texts,
        kinds: frozenset[AnswerKind],
        caller: Caller,
        *,
        fresh: bool = False,
        entered: bool = False,
        partial: bool = False,
        device: int | None = None,
        decode: Callable[[Job, Int32 | None, float], Awaitable[Int32]] | None = None,
    ) -> RunResult:
        """The answers to all texts, in order. Cancelling removes queued texts.

        kinds: some of `self.kinds`; fresh: run every text, without caches and without sharing runs; entered: the
        request is already admitted, so its wait is not checked; partial: failed texts become `RunResult.failures`;
        device: run on that device, before the queue and without retries elsewhere; decode: of texts with undecoded
        images, see ImageRun.
        """
        if self._stopped:
            raise Unavailable(SHUT_DOWN)
        job = Job(texts, kinds, caller, self.worker.now_s(), partial=partial)
        self._jobs.add(job)
        try:
            misses: Sequence[int] | None = None  # all
            if not fresh and kinds <= self._cache.kinds:
                misses = await self._cache.look_up(job)
            if misses is None or misses:
                lane = caller.lane or ("bulk" if len(texts.ids) > BULK_TOKENS else "interactive")
                places = None if misses is None or len(misses) == job.count else np.array(misses, np.int32)
                tokens = len(texts.ids) if places is None else int(texts.sizes[places].sum())
                self.check_wait(lane, caller, tokens, entered=entered)
                if decode is not None:
                    places = await decode(job, places, self._config.max_queue_wait_s)
                    job.queued_s = self.worker.now_s()
                await self._queue(job, places, lane, device)
            await job.done
            answers = job.answers
        except BaseException:
            self._abandon(job)
            raise
        finally:
            self._jobs.discard(job)
            job.release()
        return RunResult(
            answers,
            job.failures,
            queued_s=math.inf if misses == [] else job.queued_s,
            first_s=job.first_s,
            last_s=job.last_s,
            device=self.facts.device,
        )

    def alone_tokens(self, kinds: frozenset[AnswerKind], texts: int) -> int:
        """How many tokens of so many texts `run_alone` may run now; 0: none. Any thread."""
        if self.facts.device != "cpu" or kinds <= self._cache.kinds or not self.worker.is_idle:
            return 0
        if self._max_batch_texts is not None and texts > self._max_batch_texts:
            return 0
        quick_tokens = min(self.facts.quick_tokens, self.facts.max_batch_tokens)
        return max(quick_tokens, ALONE_TOKENS) if texts == 1 else quick_tokens

    def run_alone(self, texts: Texts, kinds: frozenset[AnswerKind]) -> RunResult | None:
        """See Worker.run_alone. Neither cached nor reported."""
        if len(texts.ids) > self.alone_tokens(kinds, len(texts)):
            return None
        answers = self.worker.run_alone(Item(texts, kinds, "", "interactive"))
        return None if answers is None else RunResult(answers, device=self.facts.device)

    def stop(self) -> None:
        """Run nothing more; waiting requests fail with Unavailable."""
        self._stopped = True
        if self._watching is not None:
            self._watching.cancel()
        self.worker.stop()
        for job in self._jobs:
            job.end(Unavailable(SHUT_DOWN))

    def close(self, timeout_s: float) -> bool:
        """Blocks until the threads have ended and the backends are closed; False if that takes longer. A compiling
        backend cannot be interrupted: a thread closes it later, and the end of the program waits for that."""
        deadline_s = self.worker.now_s() + timeout_s
        if not self.worker.join(timeout_s):
            return False
        closing = threading.Thread(target=self._close_backends, name=f"close {self._name}", daemon=False)
        closing.start()
        closing.join(max(0.0, deadline_s - self.worker.now_s()))
        return not closing.is_alive()

    def _watch(self) -> None:
        self.worker.give_up_hung()
        self._watching = asyncio.get_running_loop().call_later(self._watch_s, self._watch)

    def _close_backends(self) -> None:
        for backend in self.backends:
            try:
                backend.close()
            except Exception:  # the device's library may raise anything; the others must close as well
                logger.exception("closing the backend of %s failed", self._name)

    def _devices_changed(self, stalled: bool) -> None:
        self._speed.streams = max(1, self.worker.living_streams)
        self._stalled_changed(stalled)

    # --- the queue --------------------------------------------------------------------------------------------

    async def _queue(self, job: Job, places: Int32 | None, lane: Lane, device: int | None) -> None:
        """places: of the job's texts to run; None: all."""
        count = job.count if places is None else len(places)
        request = None if self._joins_requests else job
        quick_tokens, most_texts = min(self.facts.quick_tokens, self.facts.max_batch_tokens), self._max_batch_texts
        for start in range(0, count, TEXTS_PER_STEP):
            if start:
                await asyncio.sleep(0)
            if job.done.done():  # the model is unloaded, or one of the first texts has failed already
                return
            own = places
            if count > TEXTS_PER_STEP:
                own = np.arange(count, dtype=np.int32) if own is None else own
                own = own[start : start + TEXTS_PER_STEP]
            if job.keys:
                own = self._join(job, own, lane)
            if own is not None and not len(own):
                continue
            item = Item(job.texts, job.kinds, job.caller.client, lane, job, own, request=request)
            job.items.append(item)
            if device is not None:
                self.worker.put_on(device, [item])
            elif (
                item.tokens > quick_tokens or (most_texts is not None and len(item) > most_texts) or self.worker.stalled
            ):
                self.worker.put([item])
            else:
                self.worker.run_now(item)
        job.is_queued_whole = True
        self._queue_changed()

    def _join(self, job: Job, places: Int32 | None, lane: Lane) -> Int32 | None:
        """Lets these texts wait for equal ones that are queued or running already; returns the places of the others.
        None: all of the job's."""
        running = self._cache.running
        own: list[int] = []
        promoted: dict[Job, list[int]] = {}
        for place in range(job.count) if places is None else places.tolist():
            owner, owned = running.setdefault(job.keys[place], (job, place))
            if (owner, owned) == (job, place):
                own.append(place)
                continue
            owner.waiters.setdefault(owned, []).append((job, place))
            job.joined.append((owner, owned))
            if lane == "interactive" and owner is not job:
                promoted.setdefault(owner, []).append(owned)
        for owner, owned_places in promoted.items():
            owner.items += self.worker.promote(owner.items, owned_places, job.caller.client)
        return None if len(own) == job.count else np.array(own, np.int32)

    def _abandon(self, job: Job) -> None:
        any_cancelled = False
        for owner, places in job.leave().items():
            for item in self.worker.cancel(owner.items, places):  # running texts continue, and the cache keeps them
                any_cancelled = True
                for place in item.places.tolist() if owner.keys else ():
                    self._cache.running.pop(owner.keys[place], None)
            if owner.has_left:
                owner.release()
        if any_cancelled:
            self._queue_changed()

    # --- after a batch ----------------------------------------------------------------------------------------

    def _deliver(self, outcome: BatchOutcome) -> None:
        """The answers first: nothing that follows can fail them."""
        failed = False
        known: list[tuple[CacheKey, Answer]] = []
        for item, reply in outcome.replies:
            job = item.job
            assert job is not None, "the runner's items have one"
            if isinstance(reply, InferenceFailed):
                failed = True
                job.fail(item.places, reply)
            else:
                job.fill(item.places, reply, outcome.started_s, outcome.ended_s)
            if job.keys:
                known += self._shared_answers(item, job, reply, outcome)
            if job.has_left:
                job.release()
        for key, answer in known:
            try:
                self._cache.keep(key, answer)
            except Exception as problem:
                self._housekeeping.log(problem)
        batch = outcome.batch
        if batch.under_load and not failed:
            self._speed.ran(batch.tokens, outcome.ended_s - outcome.free_s)
        self._observer(self._report(outcome, failed))
        self._queue_changed()

    def _shared_answers(
        self, item: Item, job: Job, reply: Answers | InferenceFailed, outcome: BatchOutcome
    ) -> list[tuple[CacheKey, Answer]]:
        """Fill in the answers of jobs that joined; returns those that the cache may keep, which own their memory."""
        known: list[tuple[CacheKey, Answer]] = []
        pooled = [1] * len(item.places) if job.texts.pooled is None else job.texts.pooled[item.places].tolist()
        stop = 0
        for i, place in enumerate(item.places.tolist()):
            start, stop = stop, stop + pooled[i]
            key = job.keys[place]
            self._cache.running.pop(key, None)
            waiters = job.waiters.pop(place, ())
            if isinstance(reply, InferenceFailed):
                for other, own_place in waiters:
                    other.fail(np.array([own_place], np.int32), reply)
                continue
            answer: Answer = {
                kind: values[start:stop].copy() if isinstance(values, np.ndarray) else values[i]
                for kind, values in reply.items()
            }
            for other, own_place in waiters:
                other.fill_one(own_place, answer, outcome.started_s, outcome.ended_s)
            known.append((key, answer))
        return known

    def _report(self, outcome: BatchOutcome, failed: bool) -> BatchRan:
        batch, device = outcome.batch, outcome.device
        facts = self.facts if device is None else self.backends[device.index].facts
        padded = batch.tokens
        if facts.cost == "padded":
            padded = max(int(item.sizes.max()) for item in batch.items) * batch.texts
        return BatchRan(
            model=self._name,
            texts=batch.texts,
            tokens=batch.tokens,
            padding_tokens=padded - batch.tokens,
            bulk_tokens=sum(item.tokens for item in batch.items if item.lane == "bulk"),
            max_tokens=facts.max_batch_tokens,
            device="" if device is None else device.name,
            scores="scores" in batch.items[0].kinds,
            seconds=outcome.ended_s - outcome.started_s,
            streams=sum(1 if one.facts.pipelined else one.facts.streams for one in self.backends),
            failed=failed,
        )


def _last(job: Job) -> list[Item]:
    """The items that may hold the last of a job's texts."""
    if job.items:
        return job.items
    owner, place = job.joined[-1]
    return [item for item in owner.items if place in item.places]


def _together(facts: Sequence[BackendFacts]) -> BackendFacts:
    """The facts of the model on all its devices: the smallest limits, the sum of the streams."""
    first = facts[0]
    return replace(
        first,
        device=",".join(dict.fromkeys(one.device for one in facts)),
        streams=sum(one.streams for one in facts),
        max_batch_tokens=min(one.max_batch_tokens for one in facts),
        max_batch_texts=_least(*(one.max_batch_texts for one in facts)),
    )


def _limits(facts: BackendFacts, max_batch_texts: int | None) -> BatchLimits:
    return BatchLimits(
        max_batch_tokens=facts.max_batch_tokens,
        cost=facts.cost,
        max_batch_texts=_least(max_batch_texts, facts.max_batch_texts),
        pipelined=facts.pipelined,
    )


def _names(devices: Sequence[str]) -> list[str]:
    """`cuda:0`; with several copies on one device `cuda:0/0`, `cuda:0/1`."""
    count = Counter(devices)
    seen: Counter[str] = Counter()
    names = []
    for device in devices:
        names.append(device if count[device] == 1 else f"{device}/{seen[device]}")
        seen[device] += 1
    return names


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)
