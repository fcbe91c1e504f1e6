"""What takes too long is answered with an error, leaves the queue, and takes nobody else with it."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.engine.fakes import (
    CROSS_ENCODER,
    FakeBackend,
    backend_for,
    close_gate,
    entered,
    expected_row,
    serving,
    serving_one,
    spec,
)

from vectord.engine.deadlines import before, within
from vectord.errors import InferenceTimedOut, Overloaded, TimedOut
from vectord.schema import Caller, EmbedRequest, RerankRequest

SOON_S = 0.05


def embed(text: str) -> EmbedRequest:
    return EmbedRequest(inputs=[text], normalize=False)


def due(seconds: float) -> Caller:
    return Caller(client="somebody", deadline_s=time.monotonic() + seconds)


async def test_a_request_past_its_deadline_is_told_so_and_leaves_the_queue():
    """What waits behind a forward that takes long is never run; the forward itself goes on for whoever else waits."""
    backend = FakeBackend()
    async with serving(backend) as engine:
        close_gate(backend)
        running = asyncio.create_task(engine.answer(embed("a"), Caller()))
        await entered(backend)
        with pytest.raises(TimedOut):
            await engine.answer(embed("b"), due(SOON_S))
        backend.gate.set()
        result = await running
    assert result.dense["float"].tolist() == [expected_row("a").tolist()]
    assert backend.texts_run() == ["a"]


async def test_a_deadline_that_is_over_begins_nothing():
    """A proxy that waited too long has given up already."""
    backend = FakeBackend()
    async with serving(backend) as engine:
        with pytest.raises(TimedOut):
            await engine.answer(embed("a"), due(-1))
    assert backend.texts_run() == []


async def test_a_request_that_would_be_late_is_refused_at_once():
    """By the measured speed, and with the time at which it may come again."""
    backend = FakeBackend()
    async with serving(backend, max_queue_wait_s=1000.0) as engine:
        runner = engine._registry.models[0].runner
        runner._speed.ran(tokens=1, seconds=1.0)  # a token a second
        close_gate(backend)
        running = asyncio.create_task(engine.answer(embed("a"), Caller(client="somebody")))
        await entered(backend)
        waiting = asyncio.create_task(engine.answer(embed("bbbbb"), Caller(client="somebody")))
        while runner.queued() != (1, 5):
            await asyncio.sleep(0)
        with pytest.raises(Overloaded) as caught:
            await engine.answer(embed("c"), due(2))
        assert caught.value.retry_after_s >= 1
        in_time = asyncio.create_task(engine.answer(embed("d"), due(3600)))
        backend.gate.set()
        await asyncio.gather(running, waiting, in_time)


@pytest.mark.parametrize("left_s", [None, 3600])
async def test_the_server_gives_every_request_its_time(left_s):
    """Smart Embedder's REQUEST_TIMEOUT, whoever asks and however long that caller would wait."""
    backend = FakeBackend()
    async with serving(backend, request_timeout_s=SOON_S) as engine:
        close_gate(backend)
        with pytest.raises(TimedOut):
            await engine.answer(embed("a"), Caller() if left_s is None else due(left_s))
        backend.gate.set()


async def test_a_reranking_has_a_time_of_its_own():
    """Smart Embedder's RERANK_GPU_TIMEOUT; other requests have none of it."""
    async with serving_one(CROSS_ENCODER, rerank_timeout_s=SOON_S) as (engine, backend):
        close_gate(backend)
        with pytest.raises(InferenceTimedOut):
            await engine.answer(RerankRequest(query="q", passages=["p"]), Caller())
        backend.gate.set()


async def test_rerankings_have_places_of_their_own():
    """With one place for them and that taken, a second is refused, and what is no reranking is not."""
    backends = [FakeBackend(), backend_for(CROSS_ENCODER)]
    async with serving(*backends, models=[spec(("dense",)), CROSS_ENCODER], max_concurrent_reranks=1) as engine:
        close_gate(backends[1])
        first = asyncio.create_task(engine.answer(RerankRequest(query="q", passages=["p"]), Caller()))
        await entered(backends[1])
        with pytest.raises(Overloaded):
            await engine.answer(RerankRequest(query="q", passages=["r"]), Caller())
        await engine.answer(embed("a"), Caller())
        backends[1].gate.set()
        await first
        await engine.answer(RerankRequest(query="q", passages=["r"]), Caller())


async def test_a_forward_that_hangs_is_an_error_and_the_next_request_is_answered():
    """Readiness is red in between, and green once another thread has taken the place."""
    backend = FakeBackend()
    async with serving(backend, forward_timeout_s=SOON_S) as engine:
        hung = backend.gate
        close_gate(backend)
        with pytest.raises(InferenceTimedOut):
            await engine.answer(embed("a"), Caller())
        result = await engine.answer(embed("b"), Caller())
        assert engine.readiness() == {"m0": "ready"}
        hung.set()
    assert result.dense["float"].tolist() == [expected_row("b").tolist()]
    assert backend.renewed == 1


async def test_no_deadline_is_no_timer():
    """And another's TimeoutError is not taken for ours."""

    async def fail() -> None:
        raise TimeoutError("a disk's")

    with pytest.raises(TimeoutError, match="a disk's"):
        await before(time.monotonic() + 60, fail())
    with pytest.raises(TimeoutError, match="a disk's"):
        await within(0, fail())
