"""Rate limits shared by replicas through a real Redis, and outages of it."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import ANY

import pytest
from redis.asyncio import Redis
from tests.ports import free_port
from tests.real_redis import needs_redis, redis_at
from tests.server.asgi import call
from tests.server.fakes import EMBED, FakeEngine

from vectord import housekeeping
from vectord.config import ServerConfig
from vectord.products.common.dialect import Rate
from vectord.server.admission import redis_buckets
from vectord.server.admission.buckets import Draw, LocalBuckets, Refusal
from vectord.server.admission.rate_limit import Buckets
from vectord.server.http.app import create_app

pytestmark = needs_redis

SLOW = Rate(1, period_s=60, burst=3)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is not an outage."""
    monkeypatch.setattr(redis_buckets, "TIMEOUT_S", 30.0)


@pytest.fixture
def port() -> int:
    return free_port()


@asynccontextmanager
async def replicas(port: int, number: int = 2) -> AsyncIterator[list[Buckets]]:
    opened = [Buckets(f"redis://127.0.0.1:{port}/0") for _ in range(number)]
    try:
        yield opened
    finally:
        for each in opened:
            await each.close()


async def wait_s(buckets: Buckets, bucket: str, amount: int = 1) -> float:
    """The wait of a refusal, 0 if the draw succeeded."""
    refusal = await buckets.draw([Draw(SLOW, bucket, amount)])
    return 0.0 if refusal is None else refusal.wait_s


async def test_replicas_draw_from_one_bucket(port: int, tmp_path: Path) -> None:
    """Three at once for both together; debts are shared, too."""
    with redis_at(port, tmp_path):
        async with replicas(port) as (one, other):
            waits = [await wait_s(each, "a") for each in (one, other, one, other, one)]
            assert [each > 0 for each in waits] == [False, False, False, True, True]
            assert await wait_s(other, "b") == 0
            await one.spend(SLOW, "owing", 2)
            await one.spend(SLOW, "owing", 3)
            assert 120 < await wait_s(one, "owing", 0) <= 180
            assert 120 < await wait_s(other, "owing", 0) <= 180


async def test_apps_share_their_limits(port: int, tmp_path: Path) -> None:
    """With --redis-url alone."""
    settings = {"rate_limit_requests_per_minute": 1, "rate_limit_burst_size": 2}
    config = ServerConfig(redis_url=f"redis://127.0.0.1:{port}", **settings)
    with redis_at(port, tmp_path):
        apps = [create_app(FakeEngine(), [EMBED], config) for _ in range(2)]
        replies = [await call(apps[number % 2], "POST", "/v1/embed", b'{"input": "x"}') for number in range(4)]
        assert [reply.status for reply in replies] == [200, 200, 429, 429]
        for app in apps:
            await app.state.pipeline.gate.limits.aclose()


async def test_a_cancelled_draw_does_not_affect_others(port: int, tmp_path: Path) -> None:
    """Nor their replies."""
    with redis_at(port, tmp_path) as running:
        async with replicas(port, 1) as (one,):
            assert await wait_s(one, "a") == 0
            running.send_signal(signal.SIGSTOP)
            asking = [asyncio.create_task(wait_s(one, name)) for name in "abc"]
            await asyncio.sleep(0)  # each has drawn
            asking[0].cancel()
            running.send_signal(signal.SIGCONT)
            assert await asyncio.gather(*asking, return_exceptions=True) == [ANY, 0, 0]
            assert asking[0].cancelled()


async def test_redis_has_the_arithmetic_of_a_process(port: int, tmp_path: Path) -> None:
    """The same draws succeed with both, and the others have the same waits."""
    local = LocalBuckets()
    with redis_at(port, tmp_path):
        async with replicas(port, 1) as (one,):
            for amount in (0, 1, 2, 0, 1, 3, 2, 10, 0):
                refusal = local.draw([Draw(SLOW, "a", amount)])
                wanted_s = 0.0 if refusal is None else refusal.wait_s
                assert await wait_s(one, "a", amount) == pytest.approx(wanted_s, abs=10), amount


async def test_without_redis_each_process_limits_separately(port: int, caplog: pytest.LogCaptureFixture) -> None:
    """The log reports it once, and no request fails."""
    async with replicas(port) as (one, other):
        for each in (one, other):
            waits = [await wait_s(each, "a") for _ in range(5)]
            assert [wait > 0 for wait in waits] == [False, False, False, True, True]
    logged = [one for one in caplog.records if one.name == "vectord.limits"]
    assert [one.levelno for one in logged] == [logging.WARNING] * 2  # one each
    assert not any("127.0.0.1" in one.getMessage() for one in logged)  # a URL may hold a password


async def test_redis_is_used_again_after_an_outage(
    port: int, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After RETRY_S; the log reports both changes."""
    monkeypatch.setattr(housekeeping, "RETRY_S", 0.0)
    async with replicas(port) as (one, other):
        assert await wait_s(one, "a") == 0
        with redis_at(port, tmp_path):
            for each in (one, other, one):
                assert await wait_s(each, "a") == 0
            assert await wait_s(other, "a") > 0
    assert len([one for one in caplog.records if one.name.startswith("vectord")]) == 2


async def test_a_hanging_redis_delays_one_request(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For TIMEOUT_S."""
    monkeypatch.setattr(housekeeping, "RETRY_S", 1000.0)
    drawn = []
    draw = redis_buckets.RedisBuckets.draw

    async def counted(self: redis_buckets.RedisBuckets, draws: Sequence[Draw]) -> Refusal | None:
        drawn.append(draws)
        return await draw(self, draws)

    monkeypatch.setattr(redis_buckets.RedisBuckets, "draw", counted)
    with redis_at(port, tmp_path) as running:
        async with replicas(port, 1) as (one,):
            assert await wait_s(one, "a") == 0
            running.send_signal(signal.SIGSTOP)
            monkeypatch.setattr(redis_buckets, "TIMEOUT_S", 0.1)
            assert [await wait_s(one, "a") > 0 for _ in range(5)] == [False, False, False, True, True]
            assert len(drawn) == 2
            running.send_signal(signal.SIGCONT)


async def test_spending_never_waits(
    port: int, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hanging Redis is noticed by the next draw; its unrecorded costs count locally."""
    with redis_at(port, tmp_path) as running:
        async with replicas(port, 1) as (one,):
            assert await wait_s(one, "a") == 0
            running.send_signal(signal.SIGSTOP)
            async with asyncio.timeout(10):  # a third of the time that Redis has
                await one.spend(SLOW, "a", 5)
            assert caplog.records == []
            monkeypatch.setattr(redis_buckets, "TIMEOUT_S", 0.1)
            assert await wait_s(one, "a", 0) > 0
            assert [record.levelno for record in caplog.records] == [logging.WARNING]
            running.send_signal(signal.SIGCONT)


async def test_costs_are_sent_without_a_request(port: int, tmp_path: Path) -> None:
    """As one sum."""

    async def calls(operator: Redis) -> int:
        counts = await operator.info("commandstats")
        number: int = counts["cmdstat_evalsha"]["calls"]
        return number

    with redis_at(port, tmp_path):
        async with replicas(port) as (one, other), Redis(port=port) as operator:
            assert await wait_s(one, "a") == await wait_s(other, "a") == 0
            before = await calls(operator)
            for _ in range(50):
                await one.spend(SLOW, "owing", 1)
            while await calls(operator) == before:
                pass
            assert 46 * 60 < await wait_s(other, "owing", 0) <= 48 * 60
            assert await calls(operator) == before + 2


async def test_a_restart_of_redis_is_not_noticed(port: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An idle connection that Redis closed, or a script that it has forgotten, is not an outage."""
    with redis_at(port, tmp_path):
        async with replicas(port, 1) as (one,), Redis(port=port) as operator:
            assert await wait_s(one, "a", 3) == 0
            await operator.client_kill_filter(_type="normal", skipme=True)
            await operator.script_flush()
            assert await wait_s(one, "a") > 0
    assert caplog.records == []
