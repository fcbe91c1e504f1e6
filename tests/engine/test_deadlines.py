"""Late requests end in an error, leave the queue, and do not affect others."""

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
    return Caller(client="client", deadline_s=time.monotonic() + seconds)


async def test_a_request_past_its_deadline_fails_and_leaves_the_queue():
    """Its queued texts do not run. The running forward continues for other requests."""
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


async def test_a_request_with_a_passed_deadline_does_not_start():
    """A proxy that waited too long no longer expects an answer."""
    backend = FakeBackend()
    async with serving(backend) as engine:
        with pytest.raises(TimedOut):
            await engine.answer(embed("a"), due(-1))
    assert backend.texts_run() == []


async def test_a_request_that_would_be_late_is_refused():
    """By the measured speed, with a time to retry."""
    backend = FakeBackend()
    async with serving(backend, max_queue_wait_s=1000.0) as engine:
        runner = engine._registry.models[0].runner
        runner._speed.ran(tokens=1, seconds=1.0)  # a token a second
        close_gate(backend)
        running = asyncio.create_task(engine.answer(embed("a"), Caller(client="client")))
        await entered(backend)
        waiting = asyncio.create_task(engine.answer(embed("bbbbb"), Caller(client="client")))
        while runner.queued() != (1, 5):
            await asyncio.sleep(0)
        with pytest.raises(Overloaded) as caught:
            await engine.answer(embed("c"), due(2))
        assert caught.value.retry_after_s >= 1
        in_time = asyncio.create_task(engine.answer(embed("d"), due(3600)))
        backend.gate.set()
        await asyncio.gather(running, waiting, in_time)


@pytest.mark.parametrize("left_s", [None, 3600])
async def test_request_timeout_applies_to_every_request(left_s):
    """Smart Embedder's REQUEST_TIMEOUT, also for callers with a later deadline."""
    backend = FakeBackend()
    async with serving(backend, request_timeout_s=SOON_S) as engine:
        close_gate(backend)
        with pytest.raises(TimedOut):
            await engine.answer(embed("a"), Caller() if left_s is None else due(left_s))
        backend.gate.set()


async def test_rerank_timeout_applies_to_reranking_only():
    """Smart Embedder's RERANK_GPU_TIMEOUT."""
    async with serving_one(CROSS_ENCODER, rerank_timeout_s=SOON_S) as (engine, backend):
        close_gate(backend)
        with pytest.raises(InferenceTimedOut):
            await engine.answer(RerankRequest(query="q", passages=["p"]), Caller())
        backend.gate.set()


async def test_rerank_requests_have_a_limit_of_their_own():
    """With one place, a second rerank request is refused, and an embedding request is not."""
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


async def test_after_a_hung_forward_the_next_request_is_answered():
    """The model is stalled until another thread has taken the place."""
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


async def test_without_a_deadline_there_is_no_timer():
    """And a TimeoutError of the work itself passes through."""

    async def fail() -> None:
        raise TimeoutError("a disk's")

    with pytest.raises(TimeoutError, match="a disk's"):
        await before(time.monotonic() + 60, fail())
    with pytest.raises(TimeoutError, match="a disk's"):
        await within(0, fail())
