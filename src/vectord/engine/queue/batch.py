"""A Job is one request's texts, an Item some of them in the queue, a Batch the items that a device runs together.

runner.py makes Jobs and Items on the event loop, scheduler.py makes Batches of Items and cuts an Item where a batch
ends, worker.py runs those. A Job belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

import msgspec
import numpy as np
import numpy.typing as npt

from vectord.errors import VectordError
from vectord.schema import AnswerKind, Caller, Float32, Int32, Lane, Sparse
from vectord.text.sequence import Texts

# Of one text: dense (m, D), scores (m, L): one row per span, usually one; colbert and tokens (n, .): one row per token;
# sparse: a Sparse.
Answer: TypeAlias = Mapping[AnswerKind, Float32 | Sparse]
# Of several texts: dense and scores: their rows as one matrix (M, .); the other kinds: one value per text.
Answers: TypeAlias = Mapping[AnswerKind, Float32 | list[Any]]
# fingerprint, partition of the cache, ids, type ids, spans, keys and adapter, kinds
CacheKey: TypeAlias = tuple[str, bytes, bytes, bytes, bytes, frozenset[AnswerKind]]


IN_ROWS: frozenset[AnswerKind] = frozenset({"dense", "scores"})


def answer_bytes(answer: Answer) -> int:
    return sum(
        value.indices.nbytes + value.values.nbytes if isinstance(value, Sparse) else value.nbytes
        for value in answer.values()
    )


class Item:
    """Some texts of a request in the queue, in order. Compared by identity."""

    __slots__ = ("client", "job", "kinds", "lane", "places", "request", "sizes", "texts", "tokens")

    def __init__(
        self,
        texts: Texts,
        kinds: frozenset[AnswerKind],
        client: str,
        lane: Lane,
        job: Job | None = None,
        places: Int32 | None = None,
        sizes: Int32 | None = None,
        *,
        request: Job | None = None,
    ) -> None:
        """texts: the request's; places (n,): of the item's texts among them, ascending; None: all. sizes (n,): their
        tokens, if known. request: the only one that it may share a batch with; None: any."""
        self.texts = texts
        self.kinds = kinds
        self.client = client
        self.lane = lane
        self.job = job
        self.request = request
        if places is None:
            bounds = texts.cu_seqlens
            self.sizes, self.tokens = bounds[1:] - bounds[:-1], len(texts.ids)
            self.places = np.arange(len(bounds) - 1, dtype=np.int32)
        else:
            self.places = places
            self.sizes = texts.sizes[places] if sizes is None else sizes
            self.tokens = int(self.sizes.sum())

    def __len__(self) -> int:
        """The number of its texts, never 0."""
        return len(self.places)

    def part(self, chosen: slice | npt.NDArray[np.bool_]) -> Item:
        """Some of its texts as an item of their own."""
        places, sizes = self.places[chosen], self.sizes[chosen]
        return Item(self.texts, self.kinds, self.client, self.lane, self.job, places, sizes, request=self.request)

    def keep(self, chosen: slice | npt.NDArray[np.bool_]) -> None:
        """Keep only these of its texts."""
        self.places, self.sizes = self.places[chosen], self.sizes[chosen]
        self.tokens = int(self.sizes.sum())

    def take_first(self, count: int) -> Item:
        """Remove its first texts, but not all."""
        taken = self.part(slice(0, count))
        self.keep(slice(count, None))
        return taken

    def take_out(self, places: Sequence[int] | None) -> Item | None:
        """Remove the texts at these places, None: all; returns them. If those are all, it is the item itself."""
        if places is None:
            return self
        leaving = np.isin(self.places, places)
        if leaving.all():
            return self
        if not leaving.any():
            return None
        taken = self.part(leaving)
        self.keep(~leaving)
        return taken


class Batch(msgspec.Struct, frozen=True):
    items: Sequence[Item]
    texts: int
    tokens: int
    alone: bool  # one text, no other stream busy, empty queue: the whole device may work on it
    under_load: bool  # more texts were queued: its duration measures the device's speed


def unscheduled_batch(items: Sequence[Item], *, alone: bool = False) -> Batch:
    """A batch that the scheduler did not make: its duration is no measure of the device's speed."""
    texts, tokens = sum(map(len, items)), sum(item.tokens for item in items)
    return Batch(items, texts, tokens, alone=alone, under_load=False)


class Job:
    """Collects the answers to one request's texts, in order. `done`: set by the last answer, or by the first error."""

    def __init__(
        self, texts: Texts, kinds: frozenset[AnswerKind], caller: Caller, now_s: float, *, partial: bool = False
    ) -> None:
        """partial: a text's error is one of the answers, and does not end the job."""
        self.texts = texts
        self.kinds = kinds
        self.caller = caller
        self.failures: dict[int, VectordError] = {}
        self.items: list[Item] = []  # its texts that it queued
        self.is_queued_whole = False  # whether `items` and `joined` are complete
        self.keys: Sequence[CacheKey] = ()  # of its texts; empty: they are neither cached nor shared with other jobs
        self.joined: list[tuple[Job, int]] = []  # texts of other jobs, or earlier ones of its own, that it waits for
        self.waiters: dict[int, list[tuple[Job, int]]] = {}  # by text: which texts of which jobs have joined it
        self.queued_s = now_s
        self.first_s = math.inf
        self.last_s = -math.inf
        self.answers: dict[AnswerKind, Float32 | list[Any]] = {}  # of all texts; complete once `done` has a result
        self.has_left = False
        self.count = self._missing = len(texts.cu_seqlens) - 1
        self._partial = partial
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fill(self, places: Int32, answers: Answers, started_s: float = math.inf, ended_s: float = -math.inf) -> None:
        """The answers to its texts at these places, in arrays that nobody else keeps.

        started_s, ended_s: of the forward. A job that joined a running text did not wait for all of it."""
        self.first_s = min(self.first_s, max(started_s, self.queued_s))
        self.last_s = max(self.last_s, ended_s)
        if self.has_left:
            return
        if len(places) == self.count:
            self.answers = dict(answers)
        else:
            for kind, values in answers.items():
                self._place(kind, places, values)
        self._missing -= len(places)
        if not self._missing and not self.done.done():
            self.done.set_result(None)

    def fill_one(self, place: int, answer: Answer, started_s: float = math.inf, ended_s: float = -math.inf) -> None:
        """An answer that a cache or another job has as well: it is copied."""
        places = np.array([place], np.int32)
        if self.count == 1:
            answer = {
                kind: np.copy(value) if isinstance(value, np.ndarray) else value for kind, value in answer.items()
            }
        one = {kind: value if kind in IN_ROWS else [value] for kind, value in answer.items()}
        self.fill(places, cast("Answers", one), started_s, ended_s)

    def fail(self, places: Int32, error: VectordError) -> None:
        """Records `error` for each text, as a copy: one error may fail several requests, with an index of each."""
        if not self._partial:
            self.end(error.at(index=int(places[0])))
            return
        self.failures |= {place: error.at(index=place) for place in places.tolist()}
        self.fill(places, {})

    def end(self, error: VectordError) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    def _place(self, kind: AnswerKind, places: Int32, values: Float32 | list[Any]) -> None:
        column = self.answers.get(kind)
        if isinstance(values, np.ndarray):
            if column is None:
                rows = self.count if self.texts.pooled is None else int(self.texts.pooled.sum())
                column = self.answers[kind] = np.zeros((rows, values.shape[1]), np.float32)
            assert isinstance(column, np.ndarray)
            column[self.texts.vectors_of(places)] = values
            return
        if column is None:
            column = self.answers[kind] = [None] * self.count
        for place, value in zip(places.tolist(), values, strict=True):
            column[place] = value

    def leave(self) -> Mapping[Job, list[int] | None]:
        """Stop waiting; returns the texts that no job waits for any more, by job. None: all of its texts."""
        if not self.done.cancel() and not self.done.cancelled():
            self.done.exception()  # marks it as retrieved, or asyncio would log a warning
        self.has_left = True
        self.answers = {}  # an error's traceback may keep this job alive, and answers are large
        of_others: dict[Job, list[int]] = {}
        for owner, place in dict.fromkeys(self.joined):
            waiters = owner.waiters.get(place, [])
            waiters[:] = [waiter for waiter in waiters if waiter[0] is not self]
            if not waiters and owner.waiters.pop(place, None) is not None and owner.has_left and owner is not self:
                of_others.setdefault(owner, []).append(place)
        wanted = self.waiters
        own = [place for place in range(self.count) if place not in wanted] if wanted else None
        return {**of_others, self: own}

    def release(self) -> None:
        """Break the reference cycles of a job that has ended: otherwise its answers wait for the garbage collector."""
        if not self.waiters:
            self.items.clear()
            self.joined.clear()
            self.answers = {}  # the result has them; a thread may keep the job until its next batch
