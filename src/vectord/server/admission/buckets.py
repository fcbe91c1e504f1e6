"""Token buckets by name: each holds `burst` at most and fills evenly. Of this process, or Redis's for all replicas.

rate_limit.py asks, on the event loop, once a request for all buckets that it concerns. The arithmetic is throttled-py's
(GCRA, which knows of a bucket only when it will be full): own_buckets.py calls it, shared_buckets.py has Redis run its
script. Importing that takes some tenths of a second, so it happens in a thread, from the start of the server on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from vectord.products.common.dialect import Rate

if TYPE_CHECKING:
    from vectord.server.admission.own_buckets import OwnBuckets
    from vectord.server.admission.shared_buckets import SharedBuckets

NO_BOTTOM = 10**15  # a bucket from which this much can be taken is one that may owe
MAX_RATES = 4096  # different ones that are kept at hand
REDIS_RETRY_S = 5.0  # after a failure: until then nobody waits for it again

_log = logging.getLogger("vectord.limits")


class Draw(NamedTuple):
    """So much from a bucket. 0: nothing is taken, but there must be one to take."""

    rate: Rate
    bucket: str
    amount: int = 1


class Refusal(NamedTuple):
    """place: of the draw that failed, from 0; those before it are taken, those behind it not. wait_s: until there is
    enough, above 0."""

    place: int
    wait_s: float


class Buckets:
    """Those of Redis while that answers, else this process's own: limits never fail a request."""

    def __init__(self, redis_url: str | None = None) -> None:
        self._redis_url = redis_url
        self._own: OwnBuckets | None = None
        self._shared: SharedBuckets | None = None
        self._opening: asyncio.Task[None] | None = None
        self._redis_again_s = 0.0  # by time.monotonic(), when it may be asked again
        self._redis_is_away = False

    def open(self) -> None:
        """Begin to import what buckets need. Without this the first draw does."""
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())

    async def draw(self, draws: Sequence[Draw]) -> Refusal | None:
        """All of them in turn, up to the first that fails."""
        own = self._own or await self._opened()
        if self._shared is not None and time.monotonic() >= self._redis_again_s:
            if self._redis_is_away:  # one request tries; the others do not wait with it
                self._redis_again_s = time.monotonic() + REDIS_RETRY_S
            try:
                refusal = await self._shared.draw(draws)
            except Exception as problem:  # whatever it is, it is Redis's, and no client's
                self._lost(problem)
            else:
                self._found()
                return refusal
        return own.draw(draws)

    async def spend(self, rate: Rate, bucket: str, amount: int) -> None:
        """Take as much, also what is not there: the bucket owes it then. Waits for nobody but the first `open`."""
        own = self._own or await self._opened()
        if self._shared is None or self._redis_is_away:
            own.draw([Draw(owing(rate), bucket, amount)])
        else:
            self._shared.owe(rate, bucket, amount)

    async def close(self) -> None:
        if self._opening is not None:
            await self._opening
        if self._shared is not None:
            await self._shared.close()

    async def _opened(self) -> OwnBuckets:
        self.open()
        assert self._opening is not None
        await asyncio.shield(self._opening)  # others wait for it, too
        assert self._own is not None
        return self._own

    def _lost(self, problem: Exception) -> None:
        self._redis_again_s = time.monotonic() + REDIS_RETRY_S
        if not self._redis_is_away:
            self._redis_is_away = True
            _log.warning("Redis does not answer (%s): each process limits by itself", type(problem).__name__)

    def _found(self) -> None:
        if self._redis_is_away:
            self._redis_is_away = False
            self._redis_again_s = 0.0
            _log.warning("Redis answers again: limits are shared")

    async def _open(self) -> None:
        module = await asyncio.to_thread(import_module, "vectord.server.admission.own_buckets")
        own: OwnBuckets = module.OwnBuckets()
        if self._redis_url is not None:
            shared = await asyncio.to_thread(import_module, "vectord.server.admission.shared_buckets")
            self._shared = shared.SharedBuckets(self._redis_url, own.draw)
        self._own = own


@lru_cache(MAX_RATES)
def owing(rate: Rate) -> Rate:
    """The same, of a bucket that may owe: GCRA's state is one time, whatever the burst."""
    return replace(rate, burst=NO_BOTTOM)
