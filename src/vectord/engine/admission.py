"""Whether a request may come in: refuse early, say why, say when to come back. Owned by the event loop.

Two questions, asked by engine.py and runner.py: are too many requests under way, and how long would this one wait
behind others at the speed the device has shown. How much is ahead of it, the scheduler knows.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager

from vectord.errors import Overloaded, Unavailable

MEMORY = 0.95  # weight of the past against one batch: some 20 batches, one or two seconds on a busy CPU
MAX_QUEUED_TOKENS = (
    2**25
)  # above this nothing joins a queue, whoever sent it: 256 MiB of ids, 25 min of MiniLM on two cores
RETRY_AFTER_LEAST_S = 1.0
SHUT_DOWN = "The server has shut down."


class Admission:
    """Counts the requests under way."""

    def __init__(self, max_concurrent_requests: int) -> None:
        self.max_concurrent_requests = max_concurrent_requests
        self.under_way = 0
        self.draining = False
        self._empty = asyncio.Event()
        self._empty.set()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Hold one place. Raises Unavailable while draining, Overloaded when every place is taken."""
        if self.draining:
            raise Unavailable("The server is shutting down.")
        if self.under_way >= self.max_concurrent_requests:
            raise Overloaded(
                f"{self.under_way} requests are under way, which is the limit.", retry_after_s=RETRY_AFTER_LEAST_S
            )
        self.under_way += 1
        self._empty.clear()
        try:
            yield
        finally:
            self.under_way -= 1
            if not self.under_way:
                self._empty.set()

    async def drain(self) -> None:
        """Let nothing in from now on; return when the last request has left."""
        self.draining = True
        await self._empty.wait()


class Speed:
    """Tokens a second of one model's device under load, from the batches that ran while others waited.

    A batch on an idle device says nothing about a busy one: a lone short text would make it look ten times slower.
    """

    def __init__(self, streams: int) -> None:
        self._streams = streams
        self._tokens = 0.0
        self._seconds = 0.0

    def ran(self, tokens: int, seconds: float) -> None:
        self._tokens = self._tokens * MEMORY + tokens
        self._seconds = self._seconds * MEMORY + seconds

    @property
    def tokens_per_s(self) -> float:
        """Infinite until something was measured: a server that has not been busy yet refuses nobody."""
        return self._tokens / self._seconds * self._streams if self._seconds else math.inf


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
