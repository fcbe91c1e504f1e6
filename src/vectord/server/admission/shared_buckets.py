"""Buckets in Redis, which replicas share. Called by buckets.py on the event loop, which imports this in a thread:
throttled-py and redis take some tenths of a second.

    requests ── their draws ──▶ waiting ─┐
                                         ├─ all there is, in one write ──▶ redis_line.py ──▶ a script for each request
    answers ── what they cost ──▶ owed ──┘

While one round trip is under way, the draws of further requests gather for the next. For what answers cost nobody
waits: it goes ahead of the next request's draws, or by itself if none comes. The script is throttled-py's own two,
called for one bucket after the other, so that there is one definition of a bucket.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha1
from typing import Any, TypeAlias

from redis.asyncio import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from throttled.rate_limiter.gcra import RedisLimitAtomicActionSpec, RedisPeekAtomicActionSpec

from vectord.products.common.dialect import Rate
from vectord.server.admission.buckets import MAX_RATES, Draw, Refusal, owing
from vectord.server.admission.redis_line import RedisLine, packed

PATIENCE_S = 0.1  # that a request waits for Redis at most
MAX_AT_ONCE = 256  # requests in one round trip
OWED_S = 0.005  # how long what an answer cost waits for a request to go with
PREFIX = "vectord:v1:gcra:"  # of all names in Redis; throttled's for a product called vectord

# Three arguments a bucket: seconds from one token to the next, what it holds, how many to take. throttled's scripts
# read KEYS and ARGV, which here are parameters of functions around them.
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


LOAD = packed((b"SCRIPT", b"LOAD", SCRIPT.encode()))
EVAL = (b"EVALSHA", sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest().encode())

Debts: TypeAlias = dict[tuple[Rate, str], int]  # how much, by bucket


@dataclass(slots=True)
class Question:
    """One request's draws. asked_s: in the loop's time."""

    command: bytes
    asked_s: float
    answer: asyncio.Future[Refusal | None]


class SharedBuckets:
    """redis-py's own retries are off: buckets.py knows better what to do meanwhile."""

    def __init__(self, url: str, lost: Callable[[Sequence[Draw]], object]) -> None:
        """lost: told of what answers cost where Redis could not be. Opens no connection yet."""
        settings = {"retry": Retry(NoBackoff(), 0), "retry_on_error": [], "socket_timeout": None}
        self._connections: Any = ConnectionPool.from_url(url, **settings)
        self._lost = lost
        self._line: RedisLine | None = None
        self._keeping: asyncio.Task[None] | None = None  # of the line, or of one that is being opened
        self._has_script = False
        self._waiting: deque[Question] = deque()
        self._owed: Debts = {}
        self._settling: asyncio.TimerHandle | None = None
        self._under_way: deque[Question | Debts | None] = deque()  # as replies will come; None: to the script itself
        self._forgotten: list[Question] = []  # of this trip, to be asked again
        self._deadline: asyncio.TimerHandle | None = None  # of what is under way
        self._problem: Exception = ConnectionError("Redis closed the connection")

    async def draw(self, draws: Sequence[Draw]) -> Refusal | None:
        """As Buckets.draw. Raises ConnectionError and what redis-py does, and TimeoutError after PATIENCE_S."""
        loop = asyncio.get_running_loop()
        question = Question(_command(draws), loop.time(), loop.create_future())
        self._waiting.append(question)
        self._go()
        return await question.answer

    def owe(self, rate: Rate, bucket: str, amount: int) -> None:
        """Take so much from a bucket, also what is not there, before the next draw of this process looks into it."""
        self._owed[rate, bucket] = self._owed.get((rate, bucket), 0) + amount
        if self._settling is None:
            self._settling = asyncio.get_running_loop().call_later(OWED_S, self._go)

    async def close(self) -> None:
        """What is owed is written before, where nothing is under way."""
        self._go()
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])

    # --- there ------------------------------------------------------------------------------------------------

    def _go(self) -> None:
        """Send what there is, unless a trip is under way, whose end calls this again, or a line is being opened."""
        if self._under_way or not (self._waiting or self._owed):
            return
        loop = asyncio.get_running_loop()
        if self._line is None:
            self._keeping = self._keeping or loop.create_task(self._keep_a_line())
            return
        asked_s = self._waiting[0].asked_s if self._waiting else loop.time()
        self._deadline = loop.call_at(asked_s + PATIENCE_S, self._hang_up, TimeoutError())
        self._line.write(b"".join(self._commands()))

    def _commands(self) -> Iterator[bytes]:
        """Of one trip, as they are noted to be under way."""
        if not self._has_script:
            self._has_script = True
            self._under_way.append(None)
            yield LOAD
        if debts := self._taken_debts():
            self._under_way.append(debts)
            yield _command(_draws(debts))
        for _ in range(min(len(self._waiting), MAX_AT_ONCE)):
            question = self._waiting.popleft()
            self._under_way.append(question)
            yield question.command

    def _taken_debts(self) -> Debts:
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None
        debts, self._owed = self._owed, {}
        return debts

    async def _keep_a_line(self) -> None:
        """From its opening until it is lost."""
        connection = self._connections.make_connection()
        self._problem = ConnectionError("Redis closed the connection")
        try:
            async with asyncio.timeout(PATIENCE_S):
                await connection.connect()
            self._line, self._has_script = RedisLine(connection, self._replied), False
            self._go()
            await self._line.closed
        except Exception as problem:
            self._problem = problem
        finally:
            self._line = self._keeping = None
            self._give_up()
            await connection.disconnect(nowait=True)

    # --- and back ---------------------------------------------------------------------------------------------

    def _replied(self, reply: Any) -> None:
        asked = self._under_way.popleft()
        if isinstance(reply, Exception) and str(reply).startswith("NOSCRIPT"):  # after SCRIPT FLUSH
            self._has_script = False
            self._again(asked)
        elif isinstance(reply, Exception):
            self._again(asked)
            self._hang_up(reply)
            return
        elif isinstance(asked, Question) and not asked.answer.done():  # its request may have been cancelled
            asked.answer.set_result(None if reply is None else Refusal(int(reply[0]), float(reply[1])))
        if not self._under_way:
            self._end_trip()
            self._go()

    def _again(self, asked: Question | Debts | None) -> None:
        """To be asked: nothing was taken."""
        if isinstance(asked, Question):
            self._forgotten.append(asked)
        elif asked is not None:
            for owed, amount in asked.items():
                self._owed[owed] = self._owed.get(owed, 0) + amount

    def _end_trip(self) -> None:
        self._waiting.extendleft(reversed(self._forgotten))
        self._forgotten.clear()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _hang_up(self, problem: Exception) -> None:
        self._problem = problem
        if self._line is not None:
            self._line.close()

    def _give_up(self) -> None:
        """Who waits behind a trip that failed does not wait for the next."""
        while self._under_way:
            self._again(self._under_way.popleft())
        self._end_trip()
        while self._waiting:
            question = self._waiting.popleft()
            if not question.answer.done():
                question.answer.set_exception(self._problem)
        if debts := self._taken_debts():
            self._lost(_draws(debts))


def _draws(debts: Debts) -> list[Draw]:
    return [Draw(owing(rate), bucket, amount) for (rate, bucket), amount in debts.items()]


def _command(draws: Sequence[Draw]) -> bytes:
    words = [*EVAL, b"%d" % len(draws), *(f"{PREFIX}{draw.bucket}".encode() for draw in draws)]
    for rate, _, amount in draws:
        words += (*_rate_words(rate), b"%d" % amount)
    return packed(words)


@lru_cache(MAX_RATES)
def _rate_words(rate: Rate) -> tuple[bytes, bytes]:
    return repr(rate.period_s / rate.amount).encode(), b"%d" % rate.burst
