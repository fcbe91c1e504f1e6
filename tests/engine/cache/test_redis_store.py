"""Answers that replicas share through a real Redis, and what happens without it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from redis.asyncio import Redis
from tests.engine.fakes import FakeBackend, expected_row, serving
from tests.ports import free_port
from tests.real_redis import needs_redis, redis_at

from vectord.compose import running_engine
from vectord.config import Config, EngineConfig
from vectord.engine.cache import shared
from vectord.engine.cache.redis_store import RedisStore
from vectord.engine.engine import Engine
from vectord.schema import ANYONE, EmbedRequest, EmbedResult

pytestmark = needs_redis


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is not an outage."""
    monkeypatch.setattr(shared, "LOOKUP_TIMEOUT_S", 30.0)
    monkeypatch.setattr(shared, "WRITE_TIMEOUT_S", 30.0)


@pytest.fixture
def port() -> int:
    return free_port()


def url_of(port: int) -> str:
    return f"redis://127.0.0.1:{port}/0"


def store_at(port: int) -> RedisStore:
    return RedisStore(url_of(port), ttl_s=60)


@asynccontextmanager
async def replica(port: int) -> AsyncIterator[tuple[Engine, FakeBackend]]:
    backend = FakeBackend()
    async with serving(backend, store=store_at(port)) as engine:
        yield engine, backend


async def ask(engine: Engine, *texts: str) -> None:
    result = await engine.answer(EmbedRequest(inputs=texts, normalize=False), ANYONE)
    assert isinstance(result, EmbedResult)
    np.testing.assert_array_equal(result.dense["float"], [expected_row(text) for text in texts])


async def keys(operator: Redis, number: int) -> list[bytes]:
    """Waits until there are this many."""
    found: list[bytes] = []
    while len(found) < number:
        found = await operator.keys()
    return found


async def test_bytes_are_found_until_they_expire(port: int, tmp_path: Path) -> None:
    """Any bytes, in order; None for an unknown name."""
    store = store_at(port)
    with redis_at(port, tmp_path):
        await store.open()
        await store.write({b"a": bytes(range(256)), b"b": b""})
        assert list(await store.read([b"b", b"none", b"a"])) == [b"", None, bytes(range(256))]
        async with Redis(port=port) as operator:
            assert 0 < await operator.ttl(b"a") <= 60
        await store.close()


async def test_foreign_values_are_misses(port: int, tmp_path: Path) -> None:
    """Invalid bytes, and another type of Redis."""
    with redis_at(port, tmp_path):
        async with Redis(port=port) as operator, replica(port) as (one, _), replica(port) as (other, backend):
            await ask(one, "a", "b", "c")
            first, second, _ = await keys(operator, 3)
            await operator.set(first, b"\x00" * 100)
            await operator.delete(second)
            await operator.lpush(second, b"a list")
            await ask(other, "a", "b", "c")
            assert len(backend.texts_run()) == 2


async def test_without_redis_each_process_answers_by_itself(port: int, caplog: pytest.LogCaptureFixture) -> None:
    """Requests succeed. The log has one line for reads and one for writes."""
    async with replica(port) as (one, backend):
        for text in "abc":
            await ask(one, text)
        assert backend.texts_run() == list("abc")
    logged = [record for record in caplog.records if record.name == "vectord.cache"]
    assert 1 <= len(logged) <= 2
    assert {record.levelno for record in logged} == {logging.WARNING}
    assert "127.0.0.1" not in caplog.text  # a URL may hold a password


async def test_a_cancelled_look_up_leaves_no_bytes_on_its_connection(port: int, tmp_path: Path) -> None:
    """The next look-up on that connection reads its own reply."""
    with redis_at(port, tmp_path):
        async with Redis(port=port) as operator, replica(port) as (one, _), replica(port) as (other, backend):
            texts = [f"text {n}" for n in range(20)]
            await ask(one, *texts)
            await keys(operator, 20)
            for turns in range(12):
                leaver = asyncio.create_task(ask(other, *texts[:10]))
                for _ in range(turns):
                    await asyncio.sleep(0)
                leaver.cancel()
                await asyncio.gather(leaver, return_exceptions=True)
            await ask(other, *texts)
            assert set(backend.texts_run()) <= set(texts[:10])


async def test_the_setting_shares_results(port: int, tmp_path: Path) -> None:
    """With --shared-cache, the engine writes them to this Redis."""
    config = Config(engine=EngineConfig(shared_cache=url_of(port)))
    with redis_at(port, tmp_path):
        async with running_engine(config) as engine, Redis(port=port) as operator:
            await engine.answer(EmbedRequest(inputs=("a text",)), ANYONE)
            assert len(await keys(operator, 1)) == 1
