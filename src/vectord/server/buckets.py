"""Token buckets by name: each holds `burst` at most and fills evenly. Of this process, or Redis's for all replicas.

rate_limit.py asks, on the event loop. The arithmetic is throttled-py's (GCRA, which knows of a bucket only when it will
be full); importing that takes some tenths of a second, so it happens off the loop when the first limit is asked about.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from importlib import import_module
from typing import Any, Protocol, TypeAlias, TypeVar

from vectord.dialects.base import Rate

MAX_BUCKETS = 65_536  # in memory; the longest unused make room, some 300 bytes each
MAX_RATES = 4096  # different ones that are kept at hand
NO_BOTTOM = 10**15  # a bucket from which this much can be taken is one that may owe
REDIS_TIMEOUT_S = 0.1  # that a request waits for Redis at most
REDIS_RETRY_S = 5.0  # after a failure: until then nobody waits for it again
REDIS_CONNECTIONS = 64

T = TypeVar("T")
State: TypeAlias = Any  # throttled's; it is imported late

_log = logging.getLogger("vectord.limits")


class Store(Protocol):
    """Where buckets are kept. Both answer with throttled's state of the bucket afterwards."""

    async def take(self, rate: Rate, bucket: str, amount: int) -> tuple[bool, State]:
        """(whether there was not as much, so that nothing was taken; the state)"""
        ...

    async def look(self, rate: Rate, bucket: str) -> State: ...

    async def close(self) -> None: ...


class Buckets:
    """Those of Redis while that answers, else this process's own: limits never fail a request."""

    def __init__(self, redis_url: str | None = None) -> None:
        self._redis_url = redis_url
        self._memory: Store | None = None
        self._redis: Store | None = None
        self._redis_again_s = 0.0  # by time.monotonic(), when it may be asked again
        self._redis_is_away = False

    async def take(self, rate: Rate, bucket: str) -> float:
        """Take one. 0.0, or the seconds until there is one to take."""
        limited, state = await self._asked(lambda store: store.take(rate, bucket, 1))
        return max(float(state.retry_after), 0.001) if limited else 0.0

    async def wait_s(self, rate: Rate, bucket: str) -> float:
        """The seconds until there is one to take; nothing is taken."""
        state = await self._asked(lambda store: store.look(rate, bucket))
        return max(0.0, float(state.reset_after) - (rate.burst - 1) * rate.period_s / rate.amount)

    async def spend(self, rate: Rate, bucket: str, amount: int) -> None:
        """Take as much, also what is not there: the bucket owes it then."""
        owing = replace(rate, burst=NO_BOTTOM)  # GCRA's state is one time, whatever the burst
        await self._asked(lambda store: store.take(owing, bucket, amount))

    async def close(self) -> None:
        if self._redis is not None:
            await self._redis.close()

    async def _asked(self, question: Callable[[Store], Awaitable[T]]) -> T:
        if self._memory is None:
            self._memory = await self._opened()
        if self._redis is not None and time.monotonic() >= self._redis_again_s:
            try:
                answer = await self._in_time(question(self._redis))
            except Exception as problem:  # whatever it is, it is Redis's, and no client's
                self._lost(problem)
            else:
                self._found()
                return answer
        return await question(self._memory)

    async def _in_time(self, asking: Awaitable[T]) -> T:
        if self._redis_is_away:  # one request tries; the others do not wait with it
            self._redis_again_s = time.monotonic() + REDIS_RETRY_S
        async with asyncio.timeout(REDIS_TIMEOUT_S):
            return await asking

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

    async def _opened(self) -> Store:
        await asyncio.to_thread(import_module, "throttled")
        if self._memory is not None:  # several requests waited for the import; this is not the first of them
            return self._memory
        if self._redis_url is not None:
            self._redis = _Redis(self._redis_url)
        return _Memory()


class _Memory:
    def __init__(self) -> None:
        import throttled  # noqa: PLC0415 - see the head of this file

        store = throttled.MemoryStore(options={"MAX_SIZE": MAX_BUCKETS})

        def limiter(rate: Rate) -> throttled.BaseRateLimiter:
            return throttled.Throttled(using="gcra", quota=_quota(rate), store=store).limiter

        self._limiter = lru_cache(MAX_RATES)(limiter)

    async def take(self, rate: Rate, bucket: str, amount: int) -> tuple[bool, State]:
        result = self._limiter(rate).limit(bucket, amount)
        return result.limited, result.state

    async def look(self, rate: Rate, bucket: str) -> State:
        return self._limiter(rate).peek(bucket)

    async def close(self) -> None:
        pass


class _Redis:
    """redis-py's own retries are off: buckets.py knows better what to do meanwhile."""

    def __init__(self, url: str) -> None:
        import throttled.asyncio  # noqa: PLC0415 - see the head of this file
        from redis.asyncio.retry import Retry  # noqa: PLC0415 - an extra
        from redis.backoff import NoBackoff  # noqa: PLC0415

        pool = {"max_connections": REDIS_CONNECTIONS, "retry": Retry(NoBackoff(), 0), "retry_on_error": []}
        options = {
            "SOCKET_TIMEOUT": REDIS_TIMEOUT_S,
            "SOCKET_CONNECT_TIMEOUT": REDIS_TIMEOUT_S,
            "CONNECTION_POOL_KWARGS": pool,
        }
        store = throttled.asyncio.RedisStore(server=url, options=options)
        self._client: Any = store._backend.get_client()  # throttled closes nothing itself

        def limiter(rate: Rate) -> throttled.asyncio.BaseRateLimiter:
            quota = _quota(rate)
            return throttled.asyncio.Throttled(using="gcra", quota=quota, store=store, key_prefix="vectord").limiter

        self._limiter = lru_cache(MAX_RATES)(limiter)

    async def take(self, rate: Rate, bucket: str, amount: int) -> tuple[bool, State]:
        result = await self._limiter(rate).limit(bucket, amount)
        return result.limited, result.state

    async def look(self, rate: Rate, bucket: str) -> State:
        return await self._limiter(rate).peek(bucket)

    async def close(self) -> None:
        await self._client.connection_pool.disconnect()


def _quota(rate: Rate) -> Any:
    from throttled import per_duration  # noqa: PLC0415 - see the head of this file

    return per_duration(timedelta(seconds=rate.period_s), limit=rate.amount, burst=rate.burst)
