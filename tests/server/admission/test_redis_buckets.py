"""Rate limits shared by replicas through a real Redis, and outages of it."""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.real_redis import free_port, redis_at
from tests.server.asgi import call
from tests.server.fakes import EMBED, FakeEngine
from tests.server.live import until

from vectord.config import ServerConfig
from vectord.errors import ConfigError
from vectord.products.common.dialect import Rate
from vectord.server.admission import rate_limit as module
from vectord.server.admission.buckets import Draw
from vectord.server.admission.rate_limit import Buckets
from vectord.server.http.app import create_app

redis = pytest.importorskip("redis.asyncio")
redis_buckets = pytest.importorskip("vectord.server.admission.redis_buckets")
if shutil.which("redis-server") is None:
    pytest.skip("no redis-server here", allow_module_level=True)

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
            await app.state.gate.limits.aclose()


async def test_concurrent_draws_get_their_own_replies(port: int, tmp_path: Path) -> None:
    """Round trips are shared; each request learns which of its draws failed."""
    with redis_at(port, tmp_path):
        async with replicas(port) as opened:
            one = opened[0]
            free = Rate(1000, period_s=60, burst=1000)
            await one.draw([Draw(SLOW, "empty", 3)])
            draws = [[Draw(free, "free"), Draw(SLOW, f"bucket {number // 6}")] for number in range(600)]
            draws[77] = [Draw(free, "free"), Draw(free, "free"), Draw(SLOW, "empty")]
            refusals = await asyncio.gather(*(opened[number % 2].draw(each) for number, each in enumerate(draws)))
            places = [None if refusal is None else refusal.place for refusal in refusals]
            assert places.pop(77) == 2
            assert (places.count(None), places.count(1)) == (300, 299)


async def test_a_cancelled_draw_does_not_affect_others(port: int, tmp_path: Path) -> None:
    with redis_at(port, tmp_path):
        async with replicas(port, 1) as (one,):
            asking = [asyncio.create_task(wait_s(one, f"bucket {number}")) for number in range(3)]
            await until(lambda: one._redis is not None and one._redis._sending is not None)
            asking[0].cancel()
            assert await asyncio.gather(*asking[1:]) == [0, 0]


async def test_a_flushed_script_is_loaded_again(port: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """SCRIPT FLUSH is not an outage."""
    with redis_at(port, tmp_path):
        async with replicas(port, 1) as (one,):
            assert await wait_s(one, "a") == 0
            async with redis.Redis(port=port) as operator:
                await operator.script_flush()
            waits = await asyncio.gather(*(wait_s(one, "a") for _ in range(3)))
            assert [wait > 0 for wait in waits] == [False, False, True]
    assert caplog.records == []


async def test_the_arithmetic_is_that_of_throttled(port: int, tmp_path: Path) -> None:
    """Its own limiter and our draws alternate on one bucket and agree."""
    from throttled.asyncio import RedisStore, Throttled, per_min

    with redis_at(port, tmp_path):
        async with replicas(port, 1) as (one,):
            store = RedisStore(server=f"redis://127.0.0.1:{port}/0")
            quota = per_min(SLOW.amount, burst=SLOW.burst)
            theirs = Throttled(using="gcra", quota=quota, store=store, key_prefix="vectord").limiter
            assert not (await theirs.limit("a")).limited
            assert await wait_s(one, "a", 2) == 0
            state = await theirs.peek("a")
            assert state.remaining == 0
            refused = await theirs.limit("a")
            assert refused.limited
            assert await wait_s(one, "a") == pytest.approx(refused.state.retry_after, abs=1)
            assert await wait_s(one, "a", 0) == pytest.approx(state.reset_after - 120, abs=1)
            await store._backend.get_client().connection_pool.disconnect()


async def test_without_redis_each_process_limits_separately(port: int, caplog: pytest.LogCaptureFixture) -> None:
    """The log reports it once, and no request fails."""
    async with replicas(port) as (one, other):
        for each in (one, other):
            waits = [await wait_s(each, "a") for _ in range(5)]
            assert [wait > 0 for wait in waits] == [False, False, False, True, True]
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2  # one each
    assert "127.0.0.1" not in caplog.text  # a URL may hold a password


async def test_redis_is_used_again_after_an_outage(
    port: int, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After REDIS_RETRY_S; the log reports both changes."""
    monkeypatch.setattr(module, "REDIS_RETRY_S", 0.0)
    async with replicas(port) as (one, other):
        assert await wait_s(one, "a") == 0
        with redis_at(port, tmp_path):
            for each in (one, other, one):
                assert await wait_s(each, "a") == 0
            assert await wait_s(other, "a") > 0
    assert [record.getMessage().split(" (")[0].split(":")[0] for record in caplog.records] == [
        "Redis does not answer",
        "Redis answers again",
    ]


async def test_a_hanging_redis_delays_one_request(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For TIMEOUT_S."""
    asked = []
    with redis_at(port, tmp_path) as running:
        async with replicas(port, 1) as (one,):
            assert await wait_s(one, "a") == 0
            running.send_signal(signal.SIGSTOP)
            monkeypatch.setattr(redis_buckets, "TIMEOUT_S", 0.1)
            assert one._redis is not None
            draw = one._redis.draw
            monkeypatch.setattr(one._redis, "draw", lambda draws: (asked.append(draws), draw(draws))[1])
            assert [await wait_s(one, "a") > 0 for _ in range(5)] == [False, False, False, True, True]
            assert len(asked) == 1
            running.send_signal(signal.SIGCONT)


async def test_spending_never_waits(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hanging Redis is noticed by the next draw; its unrecorded costs count locally."""
    with redis_at(port, tmp_path) as running:
        async with replicas(port, 1) as (one,):
            assert await wait_s(one, "a") == 0
            running.send_signal(signal.SIGSTOP)
            await one.spend(SLOW, "a", 5)
            assert one._redis is not None
            assert one._redis._debts
            monkeypatch.setattr(redis_buckets, "TIMEOUT_S", 0.1)
            assert await wait_s(one, "a", 0) > 0
            assert one._redis_down
            running.send_signal(signal.SIGCONT)


async def test_costs_are_sent_without_a_request(port: int, tmp_path: Path) -> None:
    """As one sum."""
    with redis_at(port, tmp_path):
        async with replicas(port) as (one, other), redis.Redis(port=port) as operator:
            assert await wait_s(one, "a") == 0
            for _ in range(50):
                await one.spend(SLOW, "owing", 1)
            assert one._redis is not None
            await until(lambda: one._redis.idle)
            assert 46 * 60 < await wait_s(other, "owing", 0) <= 48 * 60
            calls = await operator.info("commandstats")
            assert calls["cmdstat_evalsha"]["calls"] == 3


async def test_a_closed_connection_is_reopened(port: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An idle connection that Redis closed is not an outage."""
    with redis_at(port, tmp_path):
        async with replicas(port, 1) as (one,), redis.Redis(port=port) as operator:
            assert await wait_s(one, "a", 3) == 0
            await operator.client_kill_filter(_type="normal", skipme=True)
            assert await wait_s(one, "a") > 0
    assert caplog.records == []


async def test_requests_survive_an_outage(port: int, tmp_path: Path) -> None:
    """Requests are answered before, during and after it."""
    config = ServerConfig(redis_url=f"redis://127.0.0.1:{port}", rate_limit_requests_per_minute=1_000_000)
    app = create_app(FakeEngine(), [EMBED], config)
    statuses = []
    with redis_at(port, tmp_path) as running:
        for _ in range(10):
            statuses.append((await call(app, "POST", "/v1/embed", b'{"input": "x"}')).status)
            if len(statuses) == 5:
                running.kill()
                await until(lambda: running.poll() is not None)
    await app.state.gate.limits.aclose()
    assert statuses == [200] * 10


async def test_an_invalid_reply_fails_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """They get local buckets, and do not wait forever."""

    async def run_scripts(self: object, calls: list[object]) -> list[object]:
        return [1 for _ in calls]

    monkeypatch.setattr("vectord.server.admission.redis_buckets.RedisBuckets._run_scripts", run_scripts)
    buckets = Buckets("redis://127.0.0.1:1")
    drawing = [buckets.draw([Draw(Rate(1, period_s=60, burst=9), "a")]) for _ in range(3)]
    assert await asyncio.wait_for(asyncio.gather(*drawing), 5) == [None] * 3
    await buckets.close()


def test_a_missing_library_is_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the extra to install."""
    from vectord import compose
    from vectord.config import Config

    monkeypatch.setattr(compose, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"vectord\[redis\]"):
        compose.build(Config(server=ServerConfig(redis_url="redis://host")))
