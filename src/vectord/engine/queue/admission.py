"""Whether a request may come in: refuse early, say why, say when to come back. Owned by the event loop.

Two questions, asked by engine.py and runner.py: are too many requests under way, and how long would this one wait
behind others at the speed the device has shown. How much is ahead of it, the scheduler knows.
"""

from __future__ import annotations

import asyncio
import math

from vectord.errors import Overloaded, ShuttingDown

MEMORY = 0.95  # weight of the past against one batch: some 20 batches, one or two seconds on a busy CPU
MAX_QUEUED_TOKENS = (
    2**25
)  # above this nothing joins a queue, whoever sent it: 256 MiB of ids, 25 min of MiniLM on two cores
MAX_PATIENT = 64  # requests that wait however few places there are: each of them holds its body
RETRY_AFTER_LEAST_S = 1.0
SHUT_DOWN = "The server has shut down."


class Admission:
    """Places for requests, and a room to wait for one. First come, first served."""

    def __init__(self, max_concurrent_requests: int, queue_timeout_s: float = 0.0, patience_s: float = 0.0) -> None:
        """queue_timeout_s: how long a request waits for a place; 0: not at all. As many may wait as there are places:
        each of them holds its body. patience_s: how long a patient one waits, of whom MAX_PATIENT may."""
        self.max_concurrent_requests = max_concurrent_requests
        self.under_way = 0
        self._queue_timeout_s = queue_timeout_s
        self._patience_s = patience_s
        self._waiting: dict[asyncio.Future[None], None] = {}  # in order; done when the place is theirs
        self._draining = False
        self._empty = asyncio.Event()
        self._empty.set()

    async def enter(self, *, patient: bool = False) -> None:
        """Take a place, to be given back by `leave`. Raises ShuttingDown while draining, Overloaded if none is free."""
        timeout_s = self._patience_s if patient else self._queue_timeout_s
        room = max(self.max_concurrent_requests, MAX_PATIENT) if patient else self.max_concurrent_requests
        if self._draining:
            raise ShuttingDown()
        if self.under_way < self.max_concurrent_requests:
            self.under_way += 1
            self._empty.clear()
        elif timeout_s and len(self._waiting) < room:
            await self._wait(timeout_s)
        else:
            raise self._full()

    def leave(self) -> None:
        """The place goes to whoever has waited longest; with nobody waiting it is free."""
        if (place := self._next_waiting()) is not None:
            place.set_result(None)
            return
        self.under_way -= 1
        if not self.under_way:
            self._empty.set()

    def refuse(self) -> None:
        """Let nothing in from now on, nor who waits for a place."""
        self._draining = True
        while (place := self._next_waiting()) is not None:
            place.set_exception(ShuttingDown())

    async def drain(self) -> None:
        """Let nothing in from now on; return when the last request has left."""
        self.refuse()
        await self._empty.wait()

    async def _wait(self, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        place = loop.create_future()
        self._waiting[place] = None
        timer = loop.call_later(timeout_s, self._give_up, place)
        try:
            await place
        except asyncio.CancelledError:
            self._waiting.pop(place, None)
            if not place.cancelled() and place.exception() is None:  # it became theirs just before they left
                self.leave()
            raise
        finally:
            timer.cancel()

    def _give_up(self, place: asyncio.Future[None]) -> None:
        self._waiting.pop(place, None)
        if not place.done():
            place.set_exception(self._full())

    def _next_waiting(self) -> asyncio.Future[None] | None:
        while self._waiting:
            place = next(iter(self._waiting))
            del self._waiting[place]
            if not place.done():  # whoever it is has not left
                return place
        return None

    def _full(self) -> Overloaded:
        return Overloaded(
            f"{self.under_way} requests are under way, which is the limit.",
            retry_after_s=max(RETRY_AFTER_LEAST_S, self._queue_timeout_s),
        )


class Speed:
    """Tokens a second of one model's devices under load, from the batches that ran while others waited.

    A batch on an idle device says nothing about a busy one: a lone short text would make it look ten times slower. What
    passes between two batches counts: a stream that waits for a busy processor is as slow as that.
    """

    def __init__(self, streams: int) -> None:
        """streams: of all devices; who loses one says so here."""
        self.streams = streams
        self._tokens = 0.0
        self._seconds = 0.0

    def ran(self, tokens: int, seconds: float) -> None:
        self._tokens = self._tokens * MEMORY + tokens
        self._seconds = self._seconds * MEMORY + seconds

    @property
    def tokens_per_s(self) -> float:
        """Infinite until something was measured: a server that has not been busy yet refuses nobody."""
        return self._tokens / self._seconds * self.streams if self._seconds else math.inf


def check_wait(tokens_ahead: float, tokens_per_s: float, max_wait_s: float) -> None:
    """Raises Overloaded if serving `tokens_ahead` takes over `max_wait_s`; Retry-After is when it no longer will."""
    wait_s = tokens_ahead / tokens_per_s
    if wait_s > max_wait_s:
        retry_after_s = max(RETRY_AFTER_LEAST_S, wait_s - max_wait_s)
        raise Overloaded(
            f"The wait would be {wait_s:.1f} s and the limit is {max_wait_s:g} s: "
            f"about {tokens_ahead:.0f} tokens are ahead at {tokens_per_s:.0f} tokens/s.",
            retry_after_s=retry_after_s,
        )


def check_room(queued_tokens: int, tokens: int, tokens_per_s: float) -> None:
    """Raises Overloaded if `tokens` more would fill the queue beyond MAX_QUEUED_TOKENS: this bounds its memory.

    An empty queue takes any request: what one may carry has its own limits.
    """
    surplus = queued_tokens + tokens - MAX_QUEUED_TOKENS
    if queued_tokens and surplus > 0:
        raise Overloaded(
            f"{queued_tokens} tokens are waiting and the limit is {MAX_QUEUED_TOKENS}.",
            retry_after_s=max(RETRY_AFTER_LEAST_S, surplus / tokens_per_s),
        )
