"""Admission: refuse a request early, with a reason and a time to retry. Belongs to the event loop.

Two checks, made by engine.py and runner.py: the number of active requests, and the wait of this request at the speed
that the device has shown. The scheduler computes the tokens ahead of it. Work that misses its deadline is cancelled,
which removes it from the queue; a running forward is not interrupted, and its answer goes to the cache.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, NamedTuple, TypeVar

from vectord.errors import InferenceTimedOut, Overloaded, QueueTimedOut, ShuttingDown, TimedOut, VectordError

T = TypeVar("T")

MEMORY = 0.95  # weight of the past per batch: about 20 batches, one or two seconds on a busy CPU
MAX_QUEUED_TOKENS = 2**25  # the longest queue: 256 MiB of ids
MAX_PATIENT = 64  # patient requests that may wait, even with fewer places: each holds its body
FEW, EXTRA = 16, 4  # clients with less than 1/16 of the places share a further quarter of them
MIN_RETRY_AFTER_S = 1.0
SHUT_DOWN = "The server has shut down."


class Waiting(NamedTuple):
    client: str
    patient: bool


class Admission:
    """Places for active requests, and a waiting list. First come, first served.

    One client cannot keep others out: when all places are taken, a client that has few of them gets an extra one.
    """

    def __init__(
        self,
        max_concurrent_requests: int,
        queue_timeout_s: float = 0.0,
        patience_s: float = 0.0,
        max_running_requests: int | None = None,
        running: Callable[[], int] | None = None,
        *,
        exact: bool = False,
    ) -> None:
        """queue_timeout_s: how long a request waits for a place; 0: not at all. No more wait than there are places:
        each holds its body. patience_s: how long a patient request waits; at most MAX_PATIENT do, besides the others.
        max_running_requests: the places; further requests wait, and max_concurrent_requests bounds all of them.
        running: returns how many active requests need no place any more; None: each needs one until it ends.
        exact: no extra place for a client with few."""
        places = min(max_running_requests or max_concurrent_requests, max_concurrent_requests)
        self.max_concurrent_requests = places
        self._room = places if max_running_requests is None else max_concurrent_requests - places
        self._few = max(1, places // FEW)
        exact = exact or max_running_requests is not None  # the number of running requests is exact
        self._extra = 0 if exact else places // EXTRA
        self._places_of: Counter[str] = Counter()  # by client
        self._most_waiting = self._room + (MAX_PATIENT if max_running_requests is None else 0)
        self.under_way = 0
        self._running = running
        self._queue_timeout_s = queue_timeout_s
        self._patience_s = patience_s
        self._waiting: dict[asyncio.Future[None], Waiting] = {}  # in order; done when the request has a place
        self._draining = False
        self._empty = asyncio.Event()
        self._empty.set()

    async def enter(self, client: str = "", *, patient: bool = False) -> None:
        """Takes a place; `leave` returns it. Raises ShuttingDown while draining, Overloaded if no place is free."""
        if self._draining:
            raise ShuttingDown()
        if self.under_way < self.max_concurrent_requests or self._has_extra_place(client):
            self._take(client)
        else:
            self._check_may_wait(patient)
            await self._wait(self._patience_s if patient else self._queue_timeout_s, Waiting(client, patient))

    def check(self, client: str = "") -> None:
        """Raises Overloaded if `enter` would refuse a request that is not patient at once."""
        if self.under_way >= self.max_concurrent_requests and not (self._draining or self._has_extra_place(client)):
            self._check_may_wait(patient=False)

    def leave(self, client: str = "") -> None:
        """Returns a place: to the request that has waited longest, if any."""
        self.under_way -= 1
        self._places_of[client] -= 1
        if not self._places_of[client]:
            self._places_of.pop(client)  # in C, unless `del` of a Counter
        if self._waiting:
            self.admit_waiting()
        if not self.under_way:
            self._empty.set()

    def admit_waiting(self) -> None:
        """Gives free places to waiting requests. Called when `running` may have changed."""
        while self._waiting and (place := self._first_waiting()) is not None:
            client = self._waiting[place].client
            if self.under_way >= self.max_concurrent_requests and not self._has_extra_place(client):
                return
            del self._waiting[place]
            self._take(client)
            place.set_result(None)

    def refuse(self) -> None:
        """Refuse new and waiting requests from now on."""
        self._draining = True
        while (place := self._first_waiting()) is not None:
            del self._waiting[place]
            place.set_exception(ShuttingDown())

    async def drain(self) -> None:
        """Refuse new requests; return when the last active one has ended."""
        self.refuse()
        await self._empty.wait()

    def _check_may_wait(self, patient: bool) -> None:
        """Each kind has its own room, so that neither takes the other's, and all waiting requests have a limit."""
        timeout_s = self._patience_s if patient else self._queue_timeout_s
        if not timeout_s or len(self._waiting) >= self._most_waiting:
            raise self._full()
        if sum(each.patient is patient for each in self._waiting.values()) >= (MAX_PATIENT if patient else self._room):
            raise self._full()

    async def _wait(self, timeout_s: float, waiting: Waiting) -> None:
        loop = asyncio.get_running_loop()
        place = loop.create_future()
        self._waiting[place] = waiting
        timer = loop.call_later(timeout_s, self._give_up, place, timeout_s)
        try:
            await place
        except asyncio.CancelledError:
            self._waiting.pop(place, None)
            # It may have received the place just before it was cancelled.
            if not place.cancelled() and place.exception() is None:
                self.leave(waiting.client)
            raise
        finally:
            timer.cancel()

    def _give_up(self, place: asyncio.Future[None], waited_s: float) -> None:
        self.admit_waiting()
        self._waiting.pop(place, None)
        if not place.done():
            place.set_exception(
                QueueTimedOut(
                    "The request waited {limit} s for one of the {places} that may run at once.",
                    limit=waited_s,
                    places=self.max_concurrent_requests,
                    retry_after_s=max(MIN_RETRY_AFTER_S, self._queue_timeout_s),
                )
            )

    def _has_extra_place(self, client: str) -> bool:
        surplus = self.under_way - self.max_concurrent_requests - (self._running() if self._running is not None else 0)
        return surplus < 0 or (surplus < self._extra and self._places_of[client] < self._few)

    def _take(self, client: str) -> None:
        self.under_way += 1
        self._places_of[client] += 1
        self._empty.clear()

    def _first_waiting(self) -> asyncio.Future[None] | None:
        while self._waiting:
            place = next(iter(self._waiting))
            if not place.done():
                return place
            del self._waiting[place]  # cancelled
        return None

    def _full(self) -> Overloaded:
        return Overloaded(
            "{limit} requests are under way, which is the limit.",
            limit=self.max_concurrent_requests,
            retry_after_s=max(MIN_RETRY_AFTER_S, self._queue_timeout_s),
        )


class Speed:
    """Tokens per second of one model's devices under load, measured on batches that ran while others were queued.

    A batch on an idle device does not show the speed under load: a single short text would look ten times slower. The
    time between two batches counts: a stream that waits for a busy processor is that slow.
    """

    def __init__(self, streams: int) -> None:
        """streams: of all devices together; the runner updates it when one is lost."""
        self.streams = streams
        self._tokens = 0.0
        self._seconds = 0.0

    def ran(self, tokens: int, seconds: float) -> None:
        self._tokens = self._tokens * MEMORY + tokens
        self._seconds = self._seconds * MEMORY + seconds

    @property
    def tokens_per_s(self) -> float:
        """Infinite before the first measurement: a server that was never busy refuses nothing."""
        return self._tokens / self._seconds * self.streams if self._seconds else math.inf


def check_wait(tokens_ahead: float, tokens_per_s: float, max_wait_s: float) -> None:
    """Raises Overloaded if `tokens_ahead` take longer than `max_wait_s`; Retry-After is when they no longer will."""
    wait_s = tokens_ahead / tokens_per_s
    if wait_s > max_wait_s:
        retry_after_s = max(MIN_RETRY_AFTER_S, wait_s - max_wait_s)
        raise Overloaded(
            "The wait would be {given} s and the limit is {limit} s: "
            "about {tokens} tokens are ahead at {tokens_per_s} tokens/s.",
            given=round(wait_s, 1),
            limit=max_wait_s,
            tokens=round(tokens_ahead),
            tokens_per_s=round(tokens_per_s),
            retry_after_s=retry_after_s,
        )


def check_room(queued_tokens: int, tokens: int, tokens_per_s: float) -> None:
    """Raises Overloaded if `tokens` more would exceed MAX_QUEUED_TOKENS. An empty queue accepts any request."""
    surplus = queued_tokens + tokens - MAX_QUEUED_TOKENS
    if queued_tokens and surplus > 0:
        raise Overloaded(
            "{given} tokens are queued and the limit is {limit}.",
            given=queued_tokens,
            limit=MAX_QUEUED_TOKENS,
            retry_after_s=max(MIN_RETRY_AFTER_S, surplus / tokens_per_s),
        )


def earliest(deadline_s: float | None, timeout_s: float) -> float:
    """The caller's deadline or `timeout_s` from now, whichever comes first."""
    own_s = time.monotonic() + timeout_s
    return own_s if deadline_s is None else min(own_s, deadline_s)


def passed(deadline_s: float | None) -> bool:
    return deadline_s is not None and deadline_s <= time.monotonic()


async def before(deadline_s: float | None, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. deadline_s: by time.monotonic(); None: no limit. Raises TimedOut."""
    if deadline_s is None:
        return await work
    late = partial(TimedOut, "The request was not finished by its deadline.")
    if passed(deadline_s):
        work.close()
        raise late()
    return await _within(deadline_s - time.monotonic(), work, late)


async def within(timeout_s: float, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. timeout_s: 0: no limit. Raises InferenceTimedOut."""
    if not timeout_s:
        return await work
    return await _within(
        timeout_s, work, partial(InferenceTimedOut, "The model did not answer within {limit} s.", limit=timeout_s)
    )


async def _within(left_s: float, work: Coroutine[Any, Any, T], late: Callable[[], VectordError]) -> T:
    try:
        async with asyncio.timeout(left_s) as scope:
            return await work
    except TimeoutError as cause:
        if scope.expired():
            raise late() from cause
        raise
