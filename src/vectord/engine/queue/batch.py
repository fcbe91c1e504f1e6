"""An Item is a queued sequence, a Batch the items that a device runs together, a Job the texts of one request.

runner.py makes Jobs and Items on the event loop, scheduler.py makes Batches of Items, worker.py runs those. A Job
belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from vectord.errors import VectordError
from vectord.schema import AnswerKind, Caller, Float32, Lane, Sparse
from vectord.text.sequence import TokenSequence

# dense (M, D), scores (M, L): one row per span, usually one; colbert and tokens (n, .): one row per token; sparse: a
# Sparse.
Answer: TypeAlias = Mapping[AnswerKind, Float32 | Sparse]
# fingerprint, partition of the cache, ids, type ids, spans, keys and adapter, kinds
CacheKey: TypeAlias = tuple[str, bytes, bytes, bytes, bytes, frozenset[AnswerKind]]


def answer_bytes(answer: Answer) -> int:
    return sum(
        value.indices.nbytes + value.values.nbytes if isinstance(value, Sparse) else value.nbytes
        for value in answer.values()
    )


@dataclass(slots=True, eq=False)
class Item:
    """A sequence in the queue. Compared by identity: two equal texts are two items unless the cache joins them."""

    sequence: TokenSequence
    kinds: frozenset[AnswerKind]
    client: str
    lane: Lane
    key: CacheKey | None = None  # None: neither cached nor shared with other requests
    request: Job | None = None  # None: it may share a batch with other requests
    waiters: list[tuple[Job, int]] = field(default_factory=list)  # on the event loop only
    tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = len(self.sequence.ids)


@dataclass(frozen=True, slots=True)
class Batch:
    items: Sequence[Item]
    tokens: int
    alone: bool  # one text, no other stream busy, empty queue: the whole device may work on it
    under_load: bool  # more texts were queued: its duration measures the device's speed


def unscheduled_batch(items: Sequence[Item]) -> Batch:
    """A batch that the scheduler did not make: its duration is no measure of the device's speed."""
    return Batch(items, sum(item.tokens for item in items), alone=False, under_load=False)


class Job:
    """Collects the answers to one request's texts, in order. `done`: set by the last answer, or by the first error."""

    def __init__(self, texts: int, caller: Caller, now_s: float, *, partial: bool = False) -> None:
        """partial: a text's error is one of the answers, and does not end the job."""
        self.caller = caller
        self.failures: dict[int, VectordError] = {}
        self.items: list[Item] = []  # what this job waits for: its own items and shared ones
        self.is_queued_whole = False  # whether `items` is complete
        self.began_s = now_s
        self.started_s = math.inf  # start of its first forward
        self.ended_s = -math.inf  # end of its last forward
        self.answers: list[Answer] = [{}] * texts  # complete once `done` has a result
        self._missing = texts
        self._partial = partial
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fill(self, index: int, answer: Answer, started_s: float, ended_s: float) -> None:
        """started_s, ended_s: of the forward. A job that joined a running item did not wait for all of it."""
        self.started_s = min(self.started_s, max(started_s, self.began_s))
        self.ended_s = max(self.ended_s, ended_s)
        self.fill_known(index, answer)

    def fill_known(self, index: int, answer: Answer) -> None:
        """An answer from a cache."""
        self.answers[index] = answer
        self._missing -= 1
        if not self._missing and not self.done.done():
            self.done.set_result(None)

    def fail(self, index: int, error: VectordError) -> None:
        """Records `error` for one text, as a copy: one error may fail several requests, with an index of each."""
        own = error.at(index=index)
        if not self._partial:
            self.end(own)
            return
        self.failures[index] = own
        self.fill_known(index, {})

    def end(self, error: VectordError) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    def leave(self) -> list[Item]:
        """Stop waiting; returns the items without any waiter."""
        if not self.done.cancel() and not self.done.cancelled():
            self.done.exception()  # marks it as retrieved, or asyncio would log a warning
        self.answers = []  # an error's traceback may keep this job alive, and answers are large
        for item in self.items:
            item.waiters = [waiter for waiter in item.waiters if waiter[0] is not self]
        return [item for item in self.items if not item.waiters]
