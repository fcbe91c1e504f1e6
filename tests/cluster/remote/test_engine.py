"""client.py, link.py and server.py over a real socket: a remote engine behaves like a local one."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from contextlib import suppress

import numpy as np
import pytest
from tests.cluster.remote.linked import front_end, linked, remote
from tests.cluster.remote.values import same
from tests.observability.test_server_metrics import gauges
from tests.products.results import model_info, model_list
from tests.refusals import refuses
from tests.server.asgi import call
from tests.server.fakes import MODEL, FakeEngine
from tests.server.live import until

from vectord.cluster.remote import client, frames, link, server
from vectord.cluster.remote.client import RemoteBuckets, RemoteEngine, RemoteMetrics
from vectord.cluster.remote.codec import encode_call
from vectord.cluster.remote.frames import FrameKind, frame
from vectord.config import ServerConfig
from vectord.errors import (
    UNFORESEEN,
    InferenceFailed,
    InputTooLong,
    Overloaded,
    PayloadTooLarge,
    TimedOut,
    Unavailable,
    VectordError,
)
from vectord.observability.exchange import ConnectionsCounted, Exchange
from vectord.observability.metrics import Metrics
from vectord.products.common.dialect import Rate, load_dialects
from vectord.products.smart_embedder.metrics import SmartEmbedderMetrics
from vectord.schema import ANYONE, Caller, EmbedRequest, EmbedResult, LoadModel, ModelList, Request, Result
from vectord.server.admission.buckets import Draw
from vectord.server.http.app import create_app

ONE = EmbedRequest(inputs=["text"])


class Echo(FakeEngine):
    """Answers the request with `dimensions` n after `release[n]` is set, with a vector of n times n."""

    def __init__(self) -> None:
        super().__init__()
        self.release: dict[int, asyncio.Event] = {}

    async def answer(self, request: Request, caller: Caller, tokenized: object = None) -> Result:
        assert isinstance(request, EmbedRequest)
        self.callers.append(caller)
        number = request.dimensions or 0
        await self.release.setdefault(number, asyncio.Event()).wait()
        vectors = np.full((1, number), number, np.float32)
        usage = (await super().answer(request, caller)).usage  # type: ignore[union-attr]
        return EmbedResult(model=MODEL, fingerprint="f", usage=usage, dense={"float": vectors})


# --- requests -------------------------------------------------------------------------------------------------


async def test_the_result_is_that_of_the_engine() -> None:
    """And the engine receives the caller."""
    caller = Caller(client="c", request_id="r", models=frozenset({MODEL}))
    async with remote() as (engine, found):
        far, near = await engine.answer(ONE, caller), await found.engine.answer(ONE, caller)
        assert isinstance(far, EmbedResult)
        assert isinstance(near, EmbedResult)
        assert far.dense["float"].tolist() == near.dense["float"].tolist()
        assert found.engine.callers == [caller, caller]  # type: ignore[attr-defined]


async def test_a_busy_engine_refuses_before_it_gets_a_request() -> None:
    """After its first refusal a front-end checks before each request, until a second passes without one."""
    fake = FakeEngine()
    fake.busy = Overloaded("Busy.", retry_after_s=1, limit=7)
    async with remote(fake) as (engine, _):
        await engine.check_busy("embed", ANYONE)
        assert fake.checked == []
        fake.error = fake.busy
        with pytest.raises(Overloaded):
            await engine.answer(ONE, ANYONE)
        fake.callers.clear()
        with refuses(Overloaded, limit=7):
            await engine.check_busy("rerank", Caller(client="c"))
        assert fake.checked == [("rerank", Caller(client="c"))]
        fake.busy = None
        await engine.check_busy("embed", ANYONE)
        assert fake.callers == []


async def test_an_idle_front_end_does_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """The question would take each request a round trip."""
    fake = FakeEngine()
    fake.error = Overloaded("Busy.", retry_after_s=1)
    monkeypatch.setattr(client, "CHECK_S", 0.0)
    async with remote(fake) as (engine, _):
        with pytest.raises(Overloaded):
            await engine.answer(ONE, ANYONE)
        await engine.check_busy("embed", ANYONE)
        assert fake.checked == []


async def test_results_arrive_out_of_order() -> None:
    """Each request of one connection gets its own result, even if the last one is first."""
    echo = Echo()
    async with remote(echo) as (engine, _):
        asked = {
            n: asyncio.create_task(engine.answer(EmbedRequest(inputs=["t"], dimensions=n), ANYONE)) for n in range(1, 9)
        }
        await until(lambda: len(echo.release) == len(asked))
        for number in reversed(asked):
            echo.release[number].set()
            answer = await asked[number]
            assert isinstance(answer, EmbedResult)
            assert answer.dense["float"].tolist() == [[number] * number]


@pytest.mark.parametrize("value", ["half of a pair: \ud83d", 2**70, object()], ids=["surrogate", "integer", "object"])
async def test_an_error_that_cannot_be_sent_is_still_answered(value: object) -> None:
    """Its values cannot be encoded; the request must not wait without end."""
    fake = FakeEngine()
    fake.error = VectordError("{value}", value=value)
    async with remote(fake) as (engine, _):
        with pytest.raises(VectordError) as raised:
            await engine.answer(ONE, ANYONE)
    assert raised.value.message == VectordError(UNFORESEEN).message


async def test_an_error_arrives_unchanged() -> None:
    """Its class and its attributes."""
    fake = FakeEngine()
    fake.error = InputTooLong("too long", field="input", index=3, limit=10, given=12)
    async with remote(fake) as (engine, _):
        with pytest.raises(InputTooLong) as caught:
            await engine.answer(ONE, ANYONE)
        assert vars(caught.value) == vars(fake.error)


@pytest.mark.parametrize("error", [RuntimeError("secret"), InferenceFailed("It failed.")], ids=["bug", "forward"])
async def test_the_cause_of_a_failure_stays_in_the_engines_log(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """With the request id. The client gets a general message for an unexpected exception."""
    fake = FakeEngine()
    fake.error = error
    async with remote(fake) as (engine, _):
        with pytest.raises(VectordError) as caught, caplog.at_level(logging.ERROR):
            await engine.answer(ONE, Caller(request_id="abc"))
    assert "secret" not in caught.value.message
    assert caplog.records[0].fields["id"] == "abc"  # type: ignore[attr-defined]


async def test_cancelling_a_request_cancels_its_work() -> None:
    """In the engine's process."""
    fake = FakeEngine(held=True)
    async with remote(fake) as (engine, _):
        asking = asyncio.create_task(engine.answer(ONE, ANYONE))
        await fake.entered.acquire()
        asking.cancel()
        await fake.cancelled.acquire()
        fake.gate.set()
        assert isinstance(await engine.answer(ONE, ANYONE), EmbedResult)


async def test_the_end_of_a_front_end_cancels_its_work() -> None:
    """And not the work of others."""
    fake = FakeEngine(held=True)
    async with linked(fake) as found, front_end(found) as survivor:
        async with front_end(found) as dying:
            lost = asyncio.create_task(RemoteEngine(dying).answer(ONE, ANYONE))
            kept = asyncio.create_task(RemoteEngine(survivor).answer(ONE, ANYONE))
            await fake.entered.acquire()
            await fake.entered.acquire()
        with pytest.raises(Unavailable):
            await lost
        await fake.cancelled.acquire()
        assert fake.running == 1
        fake.gate.set()
        assert isinstance(await kept, EmbedResult)


async def test_a_front_end_that_does_not_read_does_not_block_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its results wait and its requests are not read."""
    monkeypatch.setattr(frames, "HIGH_WATER_BYTES", 1024)
    fake = FakeEngine(dimensions=300_000)
    async with linked(fake) as found, front_end(found) as link:
        with socket.socket(socket.AF_UNIX) as stuck:
            stuck.connect(str(found.path))
            stuck.setblocking(False)
            loop = asyncio.get_running_loop()
            for number in range(1, 40):
                call = encode_call("answer", ONE, ANYONE, None)
                await loop.sock_sendall(stuck, frame(FrameKind.CALL, number, call)[0])
            await fake.entered.acquire()
            assert isinstance(await RemoteEngine(link).answer(ONE, ANYONE), EmbedResult)


async def test_large_results_arrive_one_after_another() -> None:
    """Reading resumes after a large result is written."""
    async with remote(FakeEngine(dimensions=5_000_000)) as (engine, _):
        for _ in range(3):
            answer = await engine.answer(ONE, ANYONE)
            assert isinstance(answer, EmbedResult)
            assert answer.dense["float"].shape == (1, 5_000_000)


async def test_a_message_above_the_frame_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """On either side, with PayloadTooLarge; the connection stays open."""
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 4096)
    fake = FakeEngine(dimensions=2000)
    async with remote(fake) as (engine, _):
        with pytest.raises(PayloadTooLarge, match="answer"):
            await engine.answer(ONE, ANYONE)
        with pytest.raises(PayloadTooLarge, match="request"):
            await engine.answer(EmbedRequest(inputs=["x" * 5000]), ANYONE)
        fake.vector = np.ones(2, np.float32)
        assert isinstance(await engine.answer(ONE, ANYONE), EmbedResult)


# --- what is announced ----------------------------------------------------------------------------------------


async def test_the_state_is_known_without_waiting() -> None:
    """And changes are announced."""
    fake = FakeEngine()
    async with remote(fake) as (engine, found):
        assert engine.readiness() == {MODEL: "ready"}
        assert same(engine.models(), fake.models())
        fake.states = {MODEL: "stalled"}
        found.server.announce()
        await until(lambda: engine.readiness() == {MODEL: "stalled"})
        assert same(engine.models(), fake.models())


async def test_a_change_is_visible_when_its_request_returns() -> None:
    """The state is sent before the result of a load."""
    fake = FakeEngine()
    async with remote(fake) as (engine, _):
        fake.states = {MODEL: "unloaded"}
        await engine.answer(LoadModel(model=MODEL), ANYONE)
        assert engine.readiness() == {MODEL: "unloaded"}


@pytest.mark.parametrize(("allowed", "seen"), [({MODEL}, [MODEL]), ({"alias"}, [MODEL]), ({"other"}, [])], ids=str)
async def test_a_caller_sees_only_its_models(allowed: set[str], seen: list[str]) -> None:
    """A key may name a model by any of its names."""
    async with remote() as (engine, _):
        listed = engine.models(Caller(models=frozenset(allowed)))
        assert [info.name for info in listed.models] == seen


async def test_only_operators_see_why_a_model_failed() -> None:
    """The announced state has the reason, for every front-end."""
    fake = FakeEngine()
    failed = model_list(model_info(MODEL, state="failed", failure="no such file"))
    fake.models = lambda caller=ANYONE: failed  # type: ignore[method-assign]
    async with remote(fake) as (engine, _):
        seen = [engine.models(Caller(operator=operator)).models[0].failure for operator in (True, False)]
    assert seen == ["no such file", ""]


# --- replacing the engine's process ---------------------------------------------------------------------------


async def test_pending_requests_fail_when_the_engine_is_lost() -> None:
    """At once, with Unavailable. The next engine answers new requests."""
    fake = FakeEngine(held=True)
    async with remote(fake) as (engine, found):
        asking = asyncio.create_task(engine.answer(ONE, ANYONE))
        await fake.entered.acquire()
        await found.replace(FakeEngine())
        with pytest.raises(Unavailable):
            await asking
        await until(lambda: engine.readiness() == {MODEL: "ready"})
        assert isinstance(await engine.answer(ONE, ANYONE), EmbedResult)


async def test_without_an_engine_requests_fail_and_models_are_stalled() -> None:
    """The models stay listed."""
    async with remote() as (engine, found):
        await found.server.close()
        found.server.abort()
        await until(lambda: engine.readiness() == {MODEL: "stalled"})
        assert [info.state for info in engine.models().models] == ["stalled"]
        with pytest.raises(Unavailable):
            await engine.answer(ONE, ANYONE)


async def test_a_silent_engine_is_stalled_until_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """New requests fail at once. Those sent before end at their deadline, or keep their answers."""
    monkeypatch.setattr(server, "HEARTBEAT_S", 3600)
    monkeypatch.setattr(link, "HEARTBEAT_S", 0.001)
    monkeypatch.setattr(client, "GRACE_S", 0.0)
    fake = FakeEngine(held=True)
    async with remote(fake) as (engine, _):
        sent = asyncio.create_task(engine.answer(ONE, ANYONE))
        late = asyncio.create_task(engine.answer(ONE, Caller(client="c", deadline_s=time.monotonic() + 0.1)))
        for _ in (sent, late):
            await fake.entered.acquire()
        monkeypatch.setattr(link, "SILENT_S", 0.001)
        await until(lambda: engine.readiness() == {MODEL: "stalled"})
        assert [info.state for info in engine.models().models] == ["stalled"]
        with pytest.raises(Unavailable, match="does not answer"):
            await engine.answer(ONE, ANYONE)
        with pytest.raises(TimedOut):
            await late
        monkeypatch.setattr(link, "SILENT_S", 3600)
        fake.gate.set()
        assert isinstance(await sent, EmbedResult)
        assert engine.readiness() == {MODEL: "ready"}
        assert isinstance(await engine.answer(ONE, ANYONE), EmbedResult)


async def test_requests_of_a_hung_engine_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those without a deadline, after HUNG_S. The engine cancels them when it continues, and is ready again."""
    monkeypatch.setattr(server, "HEARTBEAT_S", 3600)
    monkeypatch.setattr(link, "HEARTBEAT_S", 0.001)
    monkeypatch.setattr(link, "HUNG_S", 1.5)
    fake = FakeEngine(held=True)
    async with remote(fake) as (engine, _):
        with pytest.raises(Unavailable, match="does not answer"):
            await engine.answer(ONE, ANYONE)
        await until(lambda: fake.running == 0)
        fake.gate.set()
        await until(lambda: engine.readiness() == {MODEL: "ready"})
        assert isinstance(await engine.answer(ONE, ANYONE), EmbedResult)


async def test_a_long_forward_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is an engine that reads no further requests because the running ones fill its memory."""
    monkeypatch.setattr(server, "MAX_REQUESTS_BYTES", 0)
    monkeypatch.setattr(server, "HEARTBEAT_S", 0.001)
    monkeypatch.setattr(link, "HEARTBEAT_S", 0.01)
    monkeypatch.setattr(link, "SILENT_S", 0.3)
    monkeypatch.setattr(link, "HUNG_S", 0.4)

    class Counting(FakeEngine):
        announced = 0

        def models(self, caller: Caller = ANYONE) -> ModelList:
            self.announced += 1
            return super().models(caller)

    fake = Counting()
    fake.gate.clear()
    async with remote(fake) as (engine, _):
        sent = asyncio.create_task(engine.answer(ONE, ANYONE))
        await until(lambda: fake.announced > 600)
        assert engine.readiness() == {MODEL: "ready"}
        fake.gate.set()
        assert isinstance(await sent, EmbedResult)


async def test_draining_affects_only_this_front_end() -> None:
    """It refuses new requests and waits for its own; the engine answers other front-ends."""
    fake = FakeEngine(held=True)
    async with linked(fake) as found, front_end(found) as link, front_end(found) as other:
        engine = RemoteEngine(link)
        asking = asyncio.create_task(engine.answer(ONE, ANYONE))
        await fake.entered.acquire()
        draining = asyncio.create_task(engine.drain())
        await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            await engine.answer(ONE, ANYONE)
        assert not draining.done()
        fake.gate.set()
        await draining
        assert isinstance(await asking, EmbedResult)
        assert isinstance(await RemoteEngine(other).answer(ONE, ANYONE), EmbedResult)


async def test_a_connection_with_another_protocol_is_closed() -> None:
    """And only that connection."""
    async with remote() as (engine, found):
        reader, writer = await asyncio.open_unix_connection(str(found.path))
        writer.write(b"GET / HTTP/1.1\r\n\r\n" * 10)
        with suppress(ConnectionError):
            while await reader.read(1000):
                pass
        writer.close()
        assert isinstance(await engine.answer(ONE, ANYONE), EmbedResult)


# --- limits and metrics ---------------------------------------------------------------------------------------


async def test_all_front_ends_share_the_rate_limits() -> None:
    """A limit of three requests applies to all front-ends together."""
    draws = [Draw(Rate(3, period_s=60, burst=3), "address:1.2.3.4")]
    async with linked() as found, front_end(found) as one, front_end(found) as other:
        both = [RemoteBuckets(one), RemoteBuckets(other)]
        refusals = [await both[turn % 2].draw(draws) for turn in range(4)]
        assert refusals[:3] == [None] * 3
        assert refusals[3] is not None
        assert refusals[3].place == 0
        assert 0 < refusals[3].wait_s <= 20


async def test_tokens_spent_at_one_front_end_count_at_the_other() -> None:
    """The quota belongs to the key."""
    rate = Rate(100, period_s=60, burst=100)
    async with linked() as found, front_end(found) as one, front_end(found) as other:
        await RemoteBuckets(one).spend(rate, "key:a:tokens", 300)
        assert await RemoteBuckets(other).draw([Draw(rate, "key:a:tokens", 0)]) is not None


def exchange(route: str, status: int = 200, error: str | None = None) -> Exchange:
    return Exchange(
        method="POST", dialect="d", route=route, status=status, request_id="r", began_s=1.0, ended_s=1.5, error=error
    )


async def test_metrics_include_all_front_ends() -> None:
    """Every front-end shows them, including its own latest requests."""
    async with linked() as found, front_end(found) as one, front_end(found) as other:
        counting = [RemoteMetrics(one), RemoteMetrics(other)]
        for metrics in (counting[0], counting[0], counting[1]):
            metrics.observe(exchange("/r"))
        counting[0].observe(exchange("/r", 401, "Unauthorized"))
        one.flush_reports()
        await counting[0].exposition()
        page, content_type = await counting[1].exposition()
        assert b'vectord_requests_total{dialect="d",route="/r",status="200"} 3.0' in page
        assert b'vectord_requests_rejected_total{reason="auth"} 1.0' in page
        assert content_type.startswith("text/plain")
        assert await counting[0].figures("live") is None  # these metrics have no engine


async def test_a_products_own_page_counts_all_front_ends() -> None:
    """Each front-end has it."""
    metrics = Metrics("1", SmartEmbedderMetrics({}))
    metrics.watch(gauges, tuple)
    async with linked(metrics=metrics) as found, front_end(found) as one, front_end(found) as other:
        for link in (one, other):
            RemoteMetrics(link).observe(exchange("/embeddings", 429, "RateLimited"))
            link.flush_reports()
        config = ServerConfig(imitates="smart_embedder")
        for link in (one, other):
            await RemoteMetrics(link).exposition()
            app = create_app(RemoteEngine(link), load_dialects(()), config, RemoteMetrics(link))
            shown = (await call(app, "GET", "/stats")).json
        assert (shown["rejected_requests"], shown["total_requests"], shown["hardware"]) == (2, 0, "unknown")


async def test_the_connections_of_all_front_ends_are_added() -> None:
    """Until a front-end ends."""
    async with linked() as found, front_end(found) as one:
        metrics = RemoteMetrics(one)
        async with front_end(found) as other:
            RemoteMetrics(other).observe(ConnectionsCounted(4, 10, {"address": 2}))
            other.flush_reports()
            metrics.observe(ConnectionsCounted(1, 10, {"address": 1}))
            metrics.observe(ConnectionsCounted(3, 10, {}))
            while b"\nvectord_connections 7.0" not in (page := await metrics.exposition())[0]:
                await asyncio.sleep(0)
            assert b"\nvectord_connections_limit 20.0" in page[0]
            assert b'vectord_connections_over_limit_total{reason="address"} 3.0' in page[0]
        while b"\nvectord_connections 3.0" not in (await metrics.exposition())[0]:
            await asyncio.sleep(0)


async def test_requests_without_an_engine_are_counted_by_the_next_one() -> None:
    """Including refusals."""
    async with linked() as found, front_end(found) as link:
        metrics = RemoteMetrics(link)
        await found.server.close()
        found.server.abort()
        await until(lambda: not link.is_up)
        metrics.observe(exchange("/r", 503))
        await found.replace(FakeEngine())
        await until(lambda: link.is_up)
        page, _ = await metrics.exposition()
        assert b'route="/r",status="503"} 1.0' in page


async def test_closing_the_link_fails_pending_requests() -> None:
    """No request hangs."""
    fake = FakeEngine(held=True)
    async with linked(fake) as found:
        async with front_end(found) as link:
            asking = asyncio.create_task(RemoteEngine(link).answer(ONE, ANYONE))
            await fake.entered.acquire()
        with pytest.raises(Unavailable):
            await asking
