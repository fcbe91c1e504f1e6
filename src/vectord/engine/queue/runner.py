"""One loaded model at work: texts in, answers out. Lives on the event loop; engine.py calls it.

run ──> cache, shared cache ──> admission ──> Items ──> Worker ~~> deliver ──> Job ──> answers
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from vectord.checkpoints.spec import ModelSpec
from vectord.compute.backends.base import Backend, BackendFacts
from vectord.config import EngineConfig
from vectord.engine.cache.answer_codec import Shapes
from vectord.engine.cache.memory import KEPT_KINDS, AnswerCache, cache_key
from vectord.engine.cache.shared import TEXTS_PER_LOOKUP, SharedCache, name_of
from vectord.engine.events import BatchRan, CacheLookedUp, Observer
from vectord.engine.queue.admission import SHUT_DOWN, Speed, check_room, check_wait
from vectord.engine.queue.batch import Answer, Item, Key, Kind
from vectord.engine.queue.devices import Device
from vectord.engine.queue.execution import Execution, output_of, widths_of
from vectord.engine.queue.job import Job
from vectord.engine.queue.scheduler import BatchLimits, Scheduler
from vectord.engine.queue.worker import Outcome, Worker
from vectord.errors import InferenceFailed, Unavailable, VectordError
from vectord.schema import Caller, DeviceState, Float32, Lane, TextOptions
from vectord.text.sequence import Encoder, TokenSequence

logger = logging.getLogger("vectord.engine")

CLOSE_TIMEOUT_S = 5.0  # how long closing waits for a forward that runs, or a backend that compiles
WATCH_S = 1.0  # how often, at most, it is looked whether a forward hangs
TEXTS_PER_TURN = 512  # texts the loop handles at a stretch before others get their turn: 2 to 3 ms


Unknown: TypeAlias = tuple[int, TokenSequence, Key | None]  # index, sequence, key


@dataclass(frozen=True, slots=True)
class RunResult:
    answers: Sequence[Answer]  # one a text, in order
    queue_s: float  # means over the texts
    inference_s: float
    failures: Mapping[int, VectordError] = field(default_factory=dict)  # by text, whose answer is empty then
    began_s: float = math.inf  # when it began to wait, and its first forward; both inf if nothing had to run
    started_s: float = math.inf
    ended_s: float = -math.inf  # of its last forward

    def rows(self, kind: Kind) -> Float32:
        """The dense vectors or scores of all spans of all texts, in an array of their own: (M, D)."""
        return np.concatenate([answer[kind] for answer in self.answers])

    def each(self, kind: Kind) -> list[Any]:
        """That kind of answer for each text."""
        return [answer[kind] for answer in self.answers]


NOTHING_RAN = RunResult(answers=(), queue_s=0.0, inference_s=0.0)


class ModelRunner:
    """Owns the model's worker, its measured speed, and its share of the common cache."""

    def __init__(
        self,
        name: str,
        spec: ModelSpec,
        encoder: Encoder,
        backends: Sequence[Backend],
        *,
        config: EngineConfig,
        max_batch_texts: int | None,
        cache: AnswerCache,
        shared: SharedCache | None = None,
        observer: Observer,
        stalled_changed: Callable[[bool], None],
        queue_changed: Callable[[], None],
    ) -> None:
        """backends: one a device, of one kind and dtype. queue_changed: called on the loop when texts came or went;
        stalled_changed: see Worker."""
        self.encoder = encoder
        self.backends = backends
        self.facts = _together([backend.facts for backend in backends])
        self.spec = spec
        self._outputs = output_of(spec)
        self.kinds = frozenset(self._outputs)  # what the model can be asked for
        self._name = name
        self._config = config
        self._cache = cache
        self._shared = shared
        self._widths = widths_of(spec)
        self._observer = observer
        self._queue_changed = queue_changed
        self._jobs: set[Job] = set()
        self._under_way: dict[Key, Item] = {}  # texts that whoever asks for them too may wait for
        self._stopped = False
        self._stalled_changed = stalled_changed
        self._speed = Speed(self.facts.streams)
        scheduler = Scheduler(
            [_limits(backend.facts, max_batch_texts) for backend in backends],
            max_age_s=config.max_age_s,
            batch_window_s=config.batch_window_ms / 1000,
        )
        loop = asyncio.get_running_loop()
        names = _names([backend.facts.device for backend in backends])
        self._worker = Worker(
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
            forward_timeout_s=config.forward_timeout_s,
            deliver=self._deliver,
            stalled_changed=self._devices_changed,
        )
        self._worker.start()
        self._watch_s = min(WATCH_S, config.forward_timeout_s / 4)
        self._watching = loop.call_later(self._watch_s, self._watch) if config.forward_timeout_s else None

    @property
    def stalled(self) -> bool:
        return self._worker.stalled

    @property
    def devices(self) -> Mapping[str, DeviceState]:
        """By name."""
        return self._worker.states

    def queued(self) -> tuple[int, int]:
        """Texts and tokens that wait."""
        return self._worker.queued()

    def queued_by_lane(self) -> dict[Lane, int]:
        """Tokens that wait."""
        return self._worker.queued_by_lane()

    def wait_s(self) -> float:
        """How long all that waits will take; 0 until the device was busy once and its speed is known."""
        _, tokens = self._worker.queued()
        return tokens / self._speed.tokens_per_s

    def check_wait(self, caller: Caller) -> None:
        """Raises Overloaded if even one token more would wait too long: asked before tokens are made of the texts."""
        self._admit(caller.lane or "interactive", caller, 1)

    def truncates(self, options: TextOptions) -> bool:
        """Whether an over-long text is cut: as the request says, else the server, else the dialect."""
        said = (options.truncate, self._config.auto_truncate, options.truncate_by_default)
        return next(choice for choice in said if choice is not None)

    async def run(
        self,
        texts: Sequence[TokenSequence],
        kinds: frozenset[Kind],
        caller: Caller,
        *,
        fresh: bool = False,
        entered: bool = False,
        partial: bool = False,
        device: int | None = None,
    ) -> RunResult:
        """The answers to all texts, in order. Cancelling takes what still waits out of the queue.

        kinds: some of `self.kinds`; fresh: run every text, whatever the cache knows or others wait for; entered: the
        caller has been let in already, however long the wait; partial: a text that fails is among `RunResult.failures`;
        device: that one runs them, alone and before all others.
        Raises Overloaded, InferenceFailed with the index, and Unavailable when the engine closes first.
        """
        if self._stopped:
            raise Unavailable(SHUT_DOWN)
        job = Job(len(texts), self._worker.now_s(), partial=partial)
        self._jobs.add(job)
        try:
            shares = kinds <= KEPT_KINDS and (self._cache.enabled or self._shared is not None) and not fresh
            unknown = await self._fill_from_cache(job, texts, kinds) if shares else _all_unknown(texts)
            if shares and unknown and self._shared is not None:
                unknown = await self._fill_from_shared(job, unknown, self._shared)
            if unknown:
                lane = caller.lane or self._lane(texts)
                tokens = sum(len(text.ids) for _, text, _ in unknown)
                self._admit(lane, caller, tokens, entered=entered)
                await self._queue(job, unknown, kinds, lane, caller.client, device)
            answers = await job.answers()
        except BaseException:
            self._abandon(job)
            raise
        finally:
            self._jobs.discard(job)
            job.items.clear()  # they point back here: without this the answers would wait for the garbage collector
        return RunResult(
            answers,
            job.queue_s / len(texts),
            job.inference_s / len(texts),
            job.failures,
            began_s=job.began_s if unknown else math.inf,
            started_s=job.started_s,
            ended_s=job.ended_s,
        )

    def stop(self) -> None:
        """Run nothing more; whoever still waits gets Unavailable."""
        self._stopped = True
        if self._watching is not None:
            self._watching.cancel()
        self._worker.stop()
        for job in self._jobs:
            job.end(Unavailable(SHUT_DOWN))

    def close(self, timeout_s: float) -> bool:
        """Blocks until the threads have ended and the backends are closed; False where either takes longer.

        A backend that still compiles waits for that, which nobody can end, and goes on closing behind us.
        """
        deadline_s = self._worker.now_s() + timeout_s
        if not self._worker.join(timeout_s):
            return False
        closing = threading.Thread(target=self._close_backends, name=f"close {self._name}", daemon=True)
        closing.start()
        closing.join(max(0.0, deadline_s - self._worker.now_s()))
        return not closing.is_alive()

    def _watch(self) -> None:
        self._worker.give_up_hung()
        self._watching = asyncio.get_running_loop().call_later(self._watch_s, self._watch)

    def _close_backends(self) -> None:
        for backend in self.backends:
            try:
                backend.close()
            except Exception:  # whatever the device's library says, the others' lives go on
                logger.exception("closing the backend of %s failed", self._name)

    def _devices_changed(self, stalled: bool) -> None:
        self._speed.streams = max(1, self._worker.living_streams)
        self._stalled_changed(stalled)

    # --- on the way in ----------------------------------------------------------------------------------------

    def _lane(self, texts: Sequence[TokenSequence]) -> Lane:
        return "bulk" if sum(len(text.ids) for text in texts) > self._config.bulk_tokens else "interactive"

    async def _fill_from_cache(self, job: Job, texts: Sequence[TokenSequence], kinds: frozenset[Kind]) -> list[Unknown]:
        """What the cache does not know."""
        unknown: list[Unknown] = []
        for index, text in enumerate(texts):
            if index and index % TEXTS_PER_TURN == 0:
                await asyncio.sleep(0)
            key = cache_key(self.spec.fingerprint, text.ids, text.type_ids, _layout(text), kinds)
            answer = self._cache.get(key)
            if answer is None:
                unknown.append((index, text, key))
            else:
                job.fill_known(index, answer)
        hits = len(texts) - len(unknown)
        self._observer(CacheLookedUp(model=self._name, hits=hits, misses=len(unknown)))
        return unknown

    async def _fill_from_shared(self, job: Job, texts: Sequence[Unknown], shared: SharedCache) -> list[Unknown]:
        """What the shared cache does not know either."""
        unknown: list[Unknown] = []
        rejected = 0
        for start in range(0, len(texts), TEXTS_PER_LOOKUP):
            if start:
                await asyncio.sleep(0)
            part = texts[start : start + TEXTS_PER_LOOKUP]
            found, refused = await self._find_shared(part, shared)
            rejected += refused
            for index, text, key in part:
                answer = None if key is None else found.get(key) or self._cache.get(key)  # found elsewhere meanwhile
                if answer is None:
                    unknown.append((index, text, key))
                else:
                    job.fill_known(index, answer)
        hits = len(texts) - len(unknown)
        self._observer(CacheLookedUp(model=self._name, hits=hits, misses=len(unknown), shared=True, rejected=rejected))
        return unknown

    async def _find_shared(self, texts: Sequence[Unknown], shared: SharedCache) -> tuple[dict[Key, Answer], int]:
        """Into the cache in memory, too. What is under way here is not looked for there."""
        wanted = {key: text for _, text, key in texts if key is not None and key not in self._under_way}
        names = {self._shared_name(key): key for key in wanted}
        shapes = {name: self._shapes(wanted[key], key[-1]) for name, key in names.items()}
        stored = await shared.find(shapes)
        found = {names[name]: answer for name, answer in stored.answers.items()}
        for key, answer in found.items():
            self._cache.keep(key, answer)
        return found, stored.rejected

    def _shared_name(self, key: Key) -> bytes:
        return name_of(key, self.facts.dtype)

    def _shapes(self, text: TokenSequence, kinds: frozenset[Kind]) -> Shapes:
        """Of an answer to this text, as execution.py makes it."""
        return {kind: None if kind == "sparse" else (text.pooled, self._widths[self._outputs[kind]]) for kind in kinds}

    def _admit(self, lane: Lane, caller: Caller, tokens: int, *, entered: bool = False) -> None:
        _, queued_tokens = self._worker.queued()
        speed = self._speed.tokens_per_s
        check_room(queued_tokens, tokens, speed)
        max_wait_s = self._config.max_queue_wait_s
        if caller.deadline_s is not None:  # what would be too late is not begun
            max_wait_s = max(0.0, min(max_wait_s, caller.deadline_s - self._worker.now_s()))
        if not entered and queued_tokens / speed > max_wait_s:
            check_wait(self._worker.tokens_ahead(lane, caller.client, tokens), speed, max_wait_s)

    async def _queue(
        self,
        job: Job,
        texts: Sequence[Unknown],
        kinds: frozenset[Kind],
        lane: Lane,
        client: str,
        device: int | None,
    ) -> None:
        for start in range(0, len(texts), TEXTS_PER_TURN):
            if start:
                await asyncio.sleep(0)
            if job.over:  # one of the first texts has failed already
                return
            items: list[Item] = []
            for index, text, key in texts[start : start + TEXTS_PER_TURN]:
                item = self._join(key, lane, client)
                if item is None:
                    item = Item(text, kinds, client, lane, key)
                    items.append(item)
                    if key is not None:
                        self._under_way[key] = item
                job.wait_for(item, index)
            if items and device is None:
                self._worker.put(items)
            elif items and device is not None:
                self._worker.put_on(device, items)
        self._queue_changed()

    def _join(self, key: Key | None, lane: Lane, client: str) -> Item | None:
        """The same text under way, if there is one; drawn into the interactive lane by a caller who is there."""
        item = None if key is None else self._under_way.get(key)
        if item is not None and item.lane == "bulk" and lane == "interactive":
            self._worker.promote(item, client)
        return item

    def _abandon(self, job: Job) -> None:
        cancelled = self._worker.cancel(job.leave())
        for item in cancelled:  # what runs already goes on, and the cache keeps its answer
            self._settle(item)
        if cancelled:
            self._queue_changed()

    # --- on the way back --------------------------------------------------------------------------------------

    def _deliver(self, outcome: Outcome) -> None:
        failed = False
        for item, answer in zip(outcome.batch.items, outcome.answers, strict=True):
            if isinstance(answer, InferenceFailed):
                failed = True
                self._fail(item, answer)
            else:
                self._fill(item, answer, outcome)
        batch = outcome.batch
        seconds = outcome.ended_s - outcome.started_s
        if batch.pressed and not failed:
            self._speed.ran(batch.tokens, outcome.ended_s - outcome.free_s)
        self._observer(self._report(outcome, seconds, failed))
        self._queue_changed()

    def _report(self, outcome: Outcome, seconds: float, failed: bool) -> BatchRan:
        batch, device = outcome.batch, outcome.device
        facts = self.facts if device is None else self.backends[device.index].facts
        padded = max(item.tokens for item in batch.items) * len(batch.items) if facts.cost == "padded" else batch.tokens
        return BatchRan(
            model=self._name,
            texts=len(batch.items),
            tokens=batch.tokens,
            padding_tokens=padded - batch.tokens,
            bulk_tokens=sum(item.tokens for item in batch.items if item.lane == "bulk"),
            max_tokens=facts.max_batch_tokens,
            device="" if device is None else device.name,
            scores="scores" in batch.items[0].kinds,
            seconds=seconds,
            streams=sum(1 if one.facts.pipelined else one.facts.streams for one in self.backends),
            failed=failed,
        )

    def _fill(self, item: Item, answer: Answer, outcome: Outcome) -> None:
        self._settle(item)
        if item.key is not None:
            self._cache.keep(item.key, answer)
            if self._shared is not None:
                self._shared.keep(self._shared_name(item.key), answer)
        for waiter, index in item.waiters:
            waiter.fill(index, answer, outcome.started_s, outcome.ended_s)

    def _fail(self, item: Item, error: InferenceFailed) -> None:
        self._settle(item)
        for waiter, index in item.waiters:
            waiter.fail(index, error)

    def _settle(self, item: Item) -> None:
        """Nobody joins it any more: it has its answer, or nobody wants it."""
        if item.key is not None:
            self._under_way.pop(item.key, None)


def _together(facts: Sequence[BackendFacts]) -> BackendFacts:
    """What is true of the model on all its devices: `max_batch_tokens` of any of them, all their streams."""
    first = facts[0]
    return replace(
        first,
        device=",".join(dict.fromkeys(one.device for one in facts)),
        streams=sum(one.streams for one in facts),
        max_batch_tokens=min(one.max_batch_tokens for one in facts),
        max_batch_texts=_least(*(one.max_batch_texts for one in facts)),
        int8_cosine=min((one.int8_cosine for one in facts if one.int8_cosine is not None), default=None),
    )


def _limits(facts: BackendFacts, max_batch_texts: int | None) -> BatchLimits:
    return BatchLimits(
        max_batch_tokens=facts.max_batch_tokens,
        cost=facts.cost,
        max_batch_texts=_least(max_batch_texts, facts.max_batch_texts),
        pipelined=facts.pipelined,
    )


def _names(devices: Sequence[str]) -> list[str]:
    """`cuda:0`, or where there are several on one device `cuda:0/0`, `cuda:0/1`."""
    count = Counter(devices)
    seen: Counter[str] = Counter()
    names = []
    for device in devices:
        names.append(device if count[device] == 1 else f"{device}/{seen[device]}")
        seen[device] += 1
    return names


def _least(*limits: int | None) -> int | None:
    """Of those that are limits."""
    return min((limit for limit in limits if limit is not None), default=None)


def _all_unknown(texts: Sequence[TokenSequence]) -> list[Unknown]:
    return [(index, text, None) for index, text in enumerate(texts)]


def _layout(sequence: TokenSequence) -> bytes:
    """What decides an answer besides the tokens, for the cache's key."""
    spans = b"" if sequence.spans is None else sequence.spans.tobytes()
    return spans if sequence.keys is None else b"%d:%b" % (sequence.keys, spans)
