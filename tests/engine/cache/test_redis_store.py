"""Answers that replicas share through a real Redis, and what happens without it."""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from tests.engine.fakes import FakeBackend, expected_row, serving
from tests.real_redis import free_port, redis_at

from vectord import compose
from vectord.config import Config, EngineConfig
from vectord.engine.cache import shared
from vectord.engine.cache.redis_store import RedisStore
from vectord.engine.engine import Engine
from vectord.errors import ConfigError
from vectord.schema import ANYONE, EmbedRequest, EmbedResult

pytest.importorskip("redis")
if shutil.which("redis-server") is None:
    pytest.skip("no redis-server here", allow_module_level=True)


@pytest.fixture
def port() -> int:
    return free_port()


def store_at(port: int) -> RedisStore:
    return RedisStore(f"redis://127.0.0.1:{port}/0", ttl_s=60)


@asynccontextmanager
async def replica(port: int) -> AsyncIterator[tuple[Engine, FakeBackend]]:
    backend = FakeBackend()
    async with serving(backend, store=store_at(port)) as engine:
        yield engine, backend


async def ask(engine: Engine, *texts: str) -> None:
    result = await engine.answer(EmbedRequest(inputs=texts, normalize=False), ANYONE)
    assert isinstance(result, EmbedResult)
    np.testing.assert_array_equal(result.dense["float"], [expected_row(text) for text in texts])


@asynccontextmanager
async def opened(port: int) -> AsyncIterator[RedisStore]:
    store = store_at(port)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def keys(store: RedisStore, number: int) -> list[bytes]:
    """Waits until there are this many."""
    while len(found := await store._client.keys()) < number:
        await asyncio.sleep(0)
    return found


async def test_bytes_are_found_until_they_expire(port: int, tmp_path: Path) -> None:
    """Any bytes, in order; None for an unknown name."""
    with redis_at(port, tmp_path):
        async with opened(port) as store:
            await store.write({b"a": bytes(range(256)), b"b": b""})
            assert list(await store.read([b"b", b"none", b"a"])) == [b"", None, bytes(range(256))]
            assert 0 < await store._client.ttl(b"a") <= 60


async def test_a_replica_finds_what_another_computed(port: int, tmp_path: Path) -> None:
    """Its device does not run."""
    texts = [f"text {n}" for n in range(40)]
    with redis_at(port, tmp_path):
        async with opened(port) as store, replica(port) as (one, _), replica(port) as (other, backend):
            await ask(one, *texts)
            assert len(await keys(store, 40)) == 40
            await ask(other, *texts)
            assert backend.batches == []


async def test_foreign_values_are_misses(port: int, tmp_path: Path) -> None:
    """Invalid bytes, and another type of Redis."""
    with redis_at(port, tmp_path):
        async with opened(port) as store, replica(port) as (one, _), replica(port) as (other, backend):
            await ask(one, "a", "b", "c")
            first, second, _ = await keys(store, 3)
            await store._client.set(first, b"\x00" * 100)
            await store._client.delete(second)
            await store._client.lpush(second, b"a list")
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


async def test_a_restarted_redis_is_used_again(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After RETRY_S."""
    monkeypatch.setattr(shared, "RETRY_S", 0.0)
    async with replica(port) as (one, _), replica(port) as (other, backend):
        await ask(one, "before")
        with redis_at(port, tmp_path):
            async with opened(port) as store:
                await ask(one, "after")
                await keys(store, 1)
                await ask(other, "after")
    assert backend.batches == []


async def test_a_hung_redis_delays_one_request(port: int, tmp_path: Path) -> None:
    """Later requests do not read it."""
    with redis_at(port, tmp_path) as running:
        async with replica(port) as (one, backend):
            await ask(one, "a")
            running.send_signal(signal.SIGSTOP)
            for text in "bcd":
                await ask(one, text)
            assert one._shared is not None and one._shared._reading.waits
            running.send_signal(signal.SIGCONT)
        assert backend.texts_run() == list("abcd")


async def test_a_full_redis_is_still_read(port: int, tmp_path: Path) -> None:
    """Answers that cannot be written are dropped."""
    with redis_at(port, tmp_path):
        async with opened(port) as store, replica(port) as (one, _), replica(port) as (other, backend):
            await ask(one, "a")
            await keys(store, 1)
            await store._client.config_set("maxmemory", 1)
            await ask(one, "b")
            await ask(other, "a", "b")
            assert backend.texts_run() == ["b"]


async def test_a_cancelled_look_up_leaves_no_bytes_on_its_connection(port: int, tmp_path: Path) -> None:
    """The next look-up on that connection reads its own reply."""
    with redis_at(port, tmp_path):
        async with opened(port) as store, replica(port) as (one, _), replica(port) as (other, backend):
            texts = [f"text {n}" for n in range(20)]
            await ask(one, *texts)
            await keys(store, 20)
            for turns in range(12):
                leaver = asyncio.create_task(ask(other, *texts[:10]))
                for _ in range(turns):
                    await asyncio.sleep(0)
                leaver.cancel()
                await asyncio.gather(leaver, return_exceptions=True)
            await ask(other, *texts)
            assert set(backend.texts_run()) <= set(texts[:10])


def test_shared_cache_configures_the_store(tmp_path: Path) -> None:
    """--shared-cache gives the engine its store."""
    config = Config(engine=EngineConfig(shared_cache="redis://host/0"))
    assert compose._store(config.engine) is not None
    assert compose._store(EngineConfig()) is None


def test_without_the_library_the_start_fails_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the package to install."""
    monkeypatch.setattr(compose, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"vectord\[redis\]"):
        compose.build(Config(engine=EngineConfig(shared_cache="redis://host")))
