"""Buckets in Redis, which replicas share. Called by buckets.py on the event loop, which imports this in a thread:
throttled-py and redis take some tenths of a second.

    requests ── their draws ──▶ waiting ── all that wait, in one write ──▶ one connection ──▶ a script for each request

While one round trip is under way, the draws of further requests gather for the next: what redis-py costs a command is
shared by all who ask at once. The script is throttled-py's own two, called for one bucket after the other, so that
there is one definition of a bucket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError
from throttled.rate_limiter.gcra import RedisLimitAtomicActionSpec, RedisPeekAtomicActionSpec

from vectord.server.buckets import Draw, Refusal

PATIENCE_S = 0.1  # that a request waits for Redis at most
MAX_AT_ONCE = 256  # requests in one round trip
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


@dataclass(frozen=True, slots=True)
class Question:
    """One request's draws. asked_s: in the loop's time."""

    words: Sequence[bytes]  # behind EVALSHA and the script's digest
    asked_s: float
    answer: asyncio.Future[Refusal | None]


class SharedBuckets:
    """redis-py's own retries are off: buckets.py knows better what to do meanwhile."""

    def __init__(self, url: str) -> None:
        """Opens no connection yet."""
        settings = {"retry": Retry(NoBackoff(), 0), "retry_on_error": [], "socket_timeout": None}
        self._connections: Any = ConnectionPool.from_url(url, **settings)
        self._connection: Any = None
        self._digest: bytes = b""  # of the script, once Redis has it
        self._waiting: list[Question] = []
        self._asking: asyncio.Task[None] | None = None

    async def draw(self, draws: Sequence[Draw]) -> Refusal | None:
        """As Buckets.draw. Raises what redis-py does, and TimeoutError after PATIENCE_S."""
        loop = asyncio.get_running_loop()
        question = Question(_words(draws), loop.time(), loop.create_future())
        self._waiting.append(question)
        if self._asking is None:
            self._asking = loop.create_task(self._ask())
        return await question.answer

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])
        await self._hang_up()

    async def _ask(self) -> None:
        """Until nobody waits."""
        try:
            while self._waiting:
                questions, self._waiting = self._waiting[:MAX_AT_ONCE], self._waiting[MAX_AT_ONCE:]
                try:
                    async with asyncio.timeout_at(questions[0].asked_s + PATIENCE_S):
                        replies = await self._round_trip(questions)
                except Exception as problem:
                    await self._give_up([*questions, *self._waiting], problem)
                else:
                    for question, reply in zip(questions, replies, strict=True):
                        if not question.answer.done():  # its request may have been cancelled
                            question.answer.set_result(reply)
        finally:
            self._asking = None

    async def _give_up(self, questions: Sequence[Question], problem: Exception) -> None:
        """Who waits behind a trip that failed does not wait for the next."""
        self._waiting = []
        await self._hang_up()
        for question in questions:
            if not question.answer.done():
                question.answer.set_exception(problem)

    async def _round_trip(self, questions: Sequence[Question]) -> list[Refusal | None]:
        if self._connection is None:
            self._connection = self._connections.make_connection()
            await self._connection.connect()
            await self._load()
        found = await self._sent(questions)
        forgotten = [place for place, reply in enumerate(found) if isinstance(reply, NoScriptError)]
        if forgotten:  # by SCRIPT FLUSH; nothing was taken
            await self._load()
            for place, reply in zip(forgotten, await self._sent([questions[at] for at in forgotten]), strict=True):
                found[place] = reply
        return [_refusal(reply) for reply in found]

    async def _sent(self, questions: Sequence[Question]) -> list[Any]:
        packed = b"".join(_packed((b"EVALSHA", self._digest, *question.words)) for question in questions)
        await self._connection.send_packed_command(packed, check_health=False)
        return [await self._reply() for _ in questions]

    async def _reply(self) -> Any:
        try:
            return await self._connection.read_response()
        except NoScriptError as problem:
            return problem

    async def _load(self) -> None:
        await self._connection.send_command("SCRIPT", "LOAD", SCRIPT, check_health=False)
        self._digest = await self._connection.read_response()

    async def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)


def _words(draws: Sequence[Draw]) -> list[bytes]:
    words = [b"%d" % len(draws), *(f"{PREFIX}{draw.bucket}".encode() for draw in draws)]
    for rate, _, amount in draws:
        words += (repr(rate.period_s / rate.amount).encode(), b"%d" % rate.burst, b"%d" % amount)
    return words


def _packed(words: Sequence[bytes]) -> bytes:
    """A command as Redis reads it. redis-py's own packing takes 50 us for a request of three buckets, this 5."""
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


def _refusal(reply: Any) -> Refusal | None:
    if reply is None:
        return None
    if isinstance(reply, Exception):
        raise reply
    place, wait_s = reply
    return Refusal(int(place), float(wait_s))
