"""Redis is lost in every way while requests run: each is answered, by this process's own work and limits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
from tests.engine.fakes import FakeBackend, expected_row, serving
from tests.server.live import until
from tests.small_redis import SmallRedis, small_redis

from vectord import housekeeping
from vectord.engine.cache.redis_store import RedisStore
from vectord.engine.engine import Engine
from vectord.products.common.dialect import Rate
from vectord.schema import ANYONE, EmbedRequest, EmbedResult
from vectord.server.admission import redis_buckets
from vectord.server.admission.buckets import Draw
from vectord.server.admission.rate_limit import Buckets

SLOW = Rate(1, period_s=60, burst=3)
FAULTS: dict[str, bytes | None] = {
    "no reply": None,
    "an error": b"-OOM command not allowed when used memory > 'maxmemory'\r\n",
    "loading": b"-LOADING Redis is loading the dataset in memory\r\n",
    "a replica": b"-READONLY You can't write against a read only replica.\r\n",
    "no RESP": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "half a reply": b"*2\r\n$5\r\nab",
    "another type": b":42\r\n",
    "too many values": b"*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n",
    "nested": b"*1\r\n" * 50 + b":1\r\n",
}


@asynccontextmanager
async def replica(redis: SmallRedis) -> AsyncIterator[tuple[Engine, FakeBackend]]:
    backend = FakeBackend()
    store = RedisStore(f"redis://127.0.0.1:{redis.port}/0", ttl_s=60)
    async with serving(backend, store=store) as engine:
        yield engine, backend


async def ask(engine: Engine, *texts: str) -> None:
    result = await engine.answer(EmbedRequest(inputs=texts, normalize=False), ANYONE)
    assert isinstance(result, EmbedResult)
    np.testing.assert_array_equal(result.dense["float"], [expected_row(text) for text in texts])


async def waits(buckets: Buckets, number: int) -> list[bool]:
    return [await buckets.draw([Draw(SLOW, "a")]) is not None for _ in range(number)]


async def test_what_is_tested_works() -> None:
    """A second replica finds the answers of the first, and draws reach the small Redis."""
    async with small_redis() as redis, replica(redis) as (one, _), replica(redis) as (other, backend):
        await ask(one, "a", "b")
        await until(lambda: len(redis.values) == 2)
        await ask(other, "a", "b")
        assert backend.batches == []
        buckets = Buckets(f"redis://127.0.0.1:{redis.port}/0")
        assert await waits(buckets, 5) == [False] * 5  # it allows everything
        assert redis.commands.count(b"EVALSHA") == 5
        await buckets.close()


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_faulty_shared_cache_is_a_miss(fault: str, caplog: pytest.LogCaptureFixture) -> None:
    """On reads and on writes; the log has at most one line for each."""
    async with small_redis() as redis, replica(redis) as (one, backend):
        redis.replies = {b"MGET": FAULTS[fault], b"SET": FAULTS[fault]}
        for text in "abcd":
            await ask(one, text, f"{text}{text}")
        assert len(backend.texts_run()) == 8
    logged = [record for record in caplog.records if record.name == "vectord.cache"]
    assert 1 <= len(logged) <= 2 and {record.levelno for record in logged} == {logging.WARNING}


@pytest.mark.parametrize("fault", FAULTS)
async def test_limits_hold_without_redis(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By local buckets, after one request that found the fault."""
    monkeypatch.setattr(redis_buckets, "TIMEOUT_S", 0.2)
    async with small_redis() as redis:
        redis.replies = {b"EVALSHA": FAULTS[fault]}
        buckets = Buckets(f"redis://127.0.0.1:{redis.port}/0")
        assert await waits(buckets, 5) == [False, False, False, True, True]
        await buckets.close()


async def test_redis_disconnects_during_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every request is answered, and Redis is used again when it is back."""
    monkeypatch.setattr(housekeeping, "RETRY_S", 0.0)
    async with small_redis() as redis, replica(redis) as (one, _):
        buckets = Buckets(f"redis://127.0.0.1:{redis.port}/0")
        for turn in range(20):
            asking = [asyncio.create_task(ask(one, f"{turn} {number}")) for number in range(4)]
            drawing = asyncio.create_task(buckets.draw([Draw(Rate(1000, period_s=60, burst=1000), "a")]))
            for _ in range(turn):
                await asyncio.sleep(0)
            redis.disconnect()
            await asyncio.gather(*asking)
            assert await drawing is None
        redis.values.clear()
        await ask(one, "when it is back")
        await until(lambda: len(redis.values) >= 1)  # and what was still on its way
        await buckets.close()
