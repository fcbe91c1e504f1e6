"""Token buckets in Redis, shared by all replicas. rate_limit.py imports this module in a thread, because importing
throttled-py and redis takes several tenths of a second, and calls it on the event loop.

All draws of one request are one call of a Lua script. While one round trip is in progress, draws of other requests
collect for the next one, which sends them in one pipeline. The costs of finished responses go first in the next
pipeline, or alone after SPEND_DELAY_S. The script contains the two scripts of throttled-py, so that a bucket has one
definition.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha1
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError
from throttled.rate_limiter.gcra import RedisLimitAtomicActionSpec, RedisPeekAtomicActionSpec

from vectord.products.common.dialect import Rate
from vectord.server.admission.buckets import Draw, Refusal, with_debt

TIMEOUT_S = 0.1  # how long a request waits for Redis
MAX_REQUESTS_PER_TRIP = 256
SPEND_DELAY_S = 0.005
PREFIX = "vectord:v1:gcra:"  # of each key in Redis, as throttled-py builds it for key_prefix="vectord"

# Three arguments per bucket: seconds per token, burst, amount. throttled's scripts read KEYS and ARGV, which are
# parameters of the functions around them.
SCRIPT = f"""
local function take(KEYS, ARGV)
{RedisLimitAtomicActionSpec.SCRIPTS}
end
local function look(KEYS, ARGV)
{RedisPeekAtomicActionSpec.SCRIPTS}
end
for place, bucket in ipairs(KEYS) do
    local interval, capacity, amount = unpack(ARGV, 3 * place - 2, 3 * place)
    local wait = 0
    if amount == "0" then
        wait = tonumber(look({{bucket}}, {{interval, capacity}})[3]) - (capacity - 1) * interval
    else
        local state = take({{bucket}}, {{interval, capacity, amount}})
        if state[1] == 1 then
            wait = math.max(tonumber(state[4]), 0.001)
        end
    end
    if wait > 0 then
        return {{place - 1, tostring(wait)}}
    end
end
return false
"""
SHA = sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()


@dataclass(slots=True)
class PendingDraw:
    """The draws of one request. began_s: by the event loop's clock."""

    draws: Sequence[Draw]
    began_s: float
    reply: asyncio.Future[Refusal | None]


class RedisBuckets:
    """After a failure rate_limit.py continues with local buckets."""

    def __init__(self, url: str, on_lost: Callable[[Sequence[Draw]], object]) -> None:
        """on_lost: receives the costs that Redis did not record. Opens no connection yet."""
        retry = Retry(NoBackoff(), 1)  # once, for a connection that Redis closed while it was idle
        self._redis: Any = Redis.from_url(url, retry=retry, socket_timeout=None)
        self._on_lost = on_lost
        self._script_loaded = False
        self._pending: deque[PendingDraw] = deque()
        self._debts: Counter[tuple[Rate, str]] = Counter()
        self._spend_timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None

    async def draw(self, draws: Sequence[Draw]) -> Refusal | None:
        """See TokenBuckets.draw. Raises TimeoutError after TIMEOUT_S, ConnectionError and redis-py's errors."""
        loop = asyncio.get_running_loop()
        pending = PendingDraw(draws, loop.time(), loop.create_future())
        self._pending.append(pending)
        self._start_sending()
        return await pending.reply

    def spend(self, rate: Rate, bucket: str, amount: int) -> None:
        """Returns at once. Later draws of this process see the cost."""
        self._debts[rate, bucket] += amount
        if self._spend_timer is None:
            self._spend_timer = asyncio.get_running_loop().call_later(SPEND_DELAY_S, self._start_sending)

    @property
    def idle(self) -> bool:
        """Whether Redis has everything that was spent and drawn."""
        return self._sending is None and not self._debts

    async def close(self) -> None:
        """Sends the remaining costs first."""
        self._start_sending()
        if self._sending is not None:
            await asyncio.wait([self._sending])
        await self._redis.aclose()

    def _start_sending(self) -> None:
        if self._sending is None and (self._pending or self._debts):
            self._sending = asyncio.get_running_loop().create_task(self._send_all())

    async def _send_all(self) -> None:
        try:
            while self._pending or self._debts:
                await self._send_some()
        finally:
            self._sending = None

    async def _send_some(self) -> None:
        """One round trip."""
        debts = self._take_debts()
        batch = [self._pending.popleft() for _ in range(min(len(self._pending), MAX_REQUESTS_PER_TRIP))]
        began_s = batch[0].began_s if batch else asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(began_s + TIMEOUT_S):
                calls = [*([debts] if debts else []), *(each.draws for each in batch)]
                replies = await self._run_scripts(calls)
            refusals = [_refusal(reply, draws) for reply, draws in zip(replies, calls, strict=True)]
        except Exception as problem:  # requests that wait for the next trip fail now, too
            for each in (*batch, *self._pending):
                if not each.reply.done():
                    each.reply.set_exception(problem)
            self._pending.clear()
            self._on_lost([*debts, *self._take_debts()])
            return
        for each, refusal in zip(batch, refusals[-len(batch) :] if batch else [], strict=True):
            if not each.reply.done():  # the request may have been cancelled
                each.reply.set_result(refusal)

    def _take_debts(self) -> Sequence[Draw]:
        if self._spend_timer is not None:
            self._spend_timer.cancel()
            self._spend_timer = None
        debts = [Draw(with_debt(rate), bucket, amount) for (rate, bucket), amount in self._debts.items()]
        self._debts.clear()
        return debts

    async def _run_scripts(self, calls: Sequence[Sequence[Draw]]) -> list[Any]:
        """The script's reply to each call; loads the script again if Redis no longer has it."""
        async with self._redis.pipeline(transaction=False) as pipeline:
            if not self._script_loaded:
                pipeline.script_load(SCRIPT)
            for draws in calls:
                pipeline.evalsha(SHA, len(draws), *_arguments(draws))
            replies: list[Any] = (await pipeline.execute(raise_on_error=False))[-len(calls) :]
        self._script_loaded = True
        forgotten = [index for index, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if forgotten:  # after SCRIPT FLUSH or a restart of Redis
            self._script_loaded = False
            again = await self._run_scripts([calls[index] for index in forgotten])
            for index, reply in zip(forgotten, again, strict=True):
                replies[index] = reply
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies


def _refusal(reply: Any, draws: Sequence[Draw]) -> Refusal | None:
    """Raises ValueError or TypeError for a reply that is not the script's: a proxy or another server may answer."""
    if reply is None:
        return None
    if not isinstance(reply, list):
        raise TypeError("not a reply of the script")
    place, wait_s = reply
    refusal = Refusal(int(place), float(wait_s))
    if not (0 <= refusal.place < len(draws) and 0 < refusal.wait_s < math.inf):
        raise ValueError("not a reply of the script")
    return refusal


def _arguments(draws: Sequence[Draw]) -> list[str | int]:
    arguments: list[str | int] = [f"{PREFIX}{draw.bucket}" for draw in draws]
    for rate, _, amount in draws:
        arguments += (repr(rate.period_s / rate.amount), rate.burst, amount)
    return arguments
