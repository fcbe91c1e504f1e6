"""Token buckets in Redis, shared by all replicas. rate_limit.py imports this module if a Redis is configured, and calls
it on the event loop.

All draws of one request are one call of a Lua script. The costs of finished responses go with the next call, or alone
after SPEND_DELAY_S.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from vectord.products.common.dialect import Rate
from vectord.server.admission.buckets import Draw, Refusal, with_debt

TIMEOUT_S = 0.1  # how long a request waits for Redis
MAX_CONNECTIONS = 32  # of one process
SPEND_DELAY_S = 0.005
PREFIX = "vectord:v1:gcra:"  # of each key in Redis

# Three arguments per bucket: seconds per token, burst, amount. The arithmetic is that of LocalBuckets. Times count from
# 2025, because Lua writes numbers with 14 digits.
SCRIPT = """
local time = redis.call("TIME")
local now = time[1] - 1735660800 + time[2] / 1000000
for place, bucket in ipairs(KEYS) do
    local token, burst, amount = unpack(ARGV, 3 * place - 2, 3 * place)
    local full = math.max(now, tonumber(redis.call("GET", bucket) or now))
    local wait = full - now + (math.max(amount, 1) - burst) * token
    if wait > 0 then
        return {place - 1, tostring(math.max(wait, 0.001))}
    end
    if amount ~= "0" then
        full = full + amount * token
        redis.call("SET", bucket, full, "EX", math.ceil(full - now))
    end
end
return false
"""


class RedisBuckets:
    """After a failure rate_limit.py continues with local buckets."""

    def __init__(self, url: str, on_lost: Callable[[Sequence[Draw]], object]) -> None:
        """on_lost: receives the costs that Redis did not record. Opens no connection yet."""
        retry = Retry(NoBackoff(), 1)  # once, for a connection that Redis closed while it was idle
        pool = BlockingConnectionPool.from_url(
            url, retry=retry, socket_timeout=None, max_connections=MAX_CONNECTIONS, timeout=None
        )
        self._redis: Any = Redis.from_pool(pool)
        self._run = self._redis.register_script(SCRIPT)  # loads it again where Redis has forgotten it
        self._on_lost = on_lost
        self._debts: Counter[tuple[Rate, str]] = Counter()
        self._spend_timer: asyncio.TimerHandle | None = None
        self._calls: set[asyncio.Task[Refusal | None]] = set()

    async def draw(self, draws: Sequence[Draw]) -> Refusal | None:
        """See TokenBuckets.draw. Raises TimeoutError after TIMEOUT_S, and redis-py's errors."""
        return await asyncio.shield(self._start(draws))  # the costs that it carries are not the request's

    def spend(self, rate: Rate, bucket: str, amount: int) -> None:
        """Returns at once. Later draws of this process see the cost."""
        self._debts[rate, bucket] += amount
        if self._spend_timer is None:
            self._spend_timer = asyncio.get_running_loop().call_later(SPEND_DELAY_S, self._start, ())

    async def close(self) -> None:
        """Sends the remaining costs first."""
        if self._debts:
            self._start(())
        await asyncio.gather(*self._calls, return_exceptions=True)
        await self._redis.aclose()

    def _start(self, draws: Sequence[Draw]) -> asyncio.Task[Refusal | None]:
        if self._spend_timer is not None:
            self._spend_timer.cancel()
            self._spend_timer = None
        debts = [Draw(with_debt(rate), bucket, amount) for (rate, bucket), amount in self._debts.items()]
        self._debts.clear()
        call = asyncio.get_running_loop().create_task(self._call(debts, draws))
        self._calls.add(call)
        call.add_done_callback(self._end)
        return call

    def _end(self, call: asyncio.Task[Refusal | None]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # that of costs alone, which are counted locally, has no other reader

    async def _call(self, debts: Sequence[Draw], draws: Sequence[Draw]) -> Refusal | None:
        """One round trip. Debts come first, and never fail."""
        both = [*debts, *draws]
        arguments: list[str | int] = []
        for rate, _, amount in both:
            arguments += (repr(rate.period_s / rate.amount), rate.burst, amount)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                reply = await self._run([f"{PREFIX}{draw.bucket}" for draw in both], arguments)
            if reply is None:
                return None
            place, wait_s = reply
            return Refusal(int(place) - len(debts), float(wait_s))
        except Exception:
            self._on_lost(debts)
            raise
