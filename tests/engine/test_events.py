"""The events that the engine reports."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.engine.fakes import (
    CROSS_ENCODER,
    M3,
    FakeBackend,
    Recorder,
    backend_for,
    close_gate,
    entered,
    serving,
    serving_one,
    settle,
)

from vectord.errors import ModelNotFound, QueueTimedOut, TimedOut
from vectord.schema import Caller, EmbedRequest, RerankRequest

ASKER = Caller(client="search", named=True, route="/v1/embeddings")


async def test_request_ended_has_the_caller_and_each_texts_length() -> None:
    """For the labels of the metrics."""
    observer = Recorder()
    async with serving_one(M3, observer=observer) as (engine, _):
        result = await engine.answer(EmbedRequest(inputs=["ab", "cdef"]), ASKER)
    (ended,) = observer.reports
    assert (ended.caller, ended.operation, ended.model, ended.error) == (ASKER, "embed", "m0", None)
    assert ended.lengths == result.usage.lengths  # type: ignore[union-attr]
    assert (ended.texts, ended.tokens) == (2, result.usage.tokens)  # type: ignore[union-attr]


async def test_timings_span_the_first_to_the_last_forward() -> None:
    """Three texts with a forward each: one wait, three computations."""
    async with serving(FakeBackend(), max_batch_texts=1, cache_bytes=0) as engine:
        result = await engine.answer(EmbedRequest(inputs=["a", "b", "c"]), ASKER)
    times = result.usage.timings  # type: ignore[union-attr]
    assert times.waiting_s >= 0 and min(times.tokenizing_s, times.computing_s) > 0
    assert times.tokenizing_s + times.waiting_s + times.computing_s <= times.total_s


async def test_active_requests_are_counted_until_they_end() -> None:
    """Also failed and cancelled ones."""
    observer = Recorder()
    async with serving_one(M3, observer=observer) as (engine, backend):
        close_gate(backend)
        request = asyncio.create_task(engine.answer(EmbedRequest(inputs=["a"]), ASKER))
        await entered(backend)
        assert engine.gauges().active["embed"] == 1
        request.cancel()
        await settle()
        assert engine.gauges().active["embed"] == 0
        backend.gate.set()
        with pytest.raises(ModelNotFound):
            await engine.answer(RerankRequest(query="a", passages=["b"], model="?"), ASKER)
        assert not any(engine.gauges().active.values())


async def test_batch_ran_has_lanes_and_padding() -> None:
    """With a padding backend: the longest text times the number of texts, minus their tokens."""
    observer = Recorder()
    async with serving(FakeBackend(cost="padded"), observer=observer, cache_bytes=0) as engine:
        observer.batch_reports.clear()
        await engine.answer(EmbedRequest(inputs=["a", "bcdef"]), Caller(lane="bulk"))
    (ended,) = observer.batch_reports
    assert ended.texts == 2
    assert ended.padding_tokens == 4
    assert (ended.bulk_tokens, ended.scores, ended.streams, ended.max_tokens) == (ended.tokens, False, 1, 256)


async def test_a_missed_deadline_is_not_a_cancellation() -> None:
    """The first is the server's fault, the second the client's choice."""
    observer = Recorder()
    async with serving_one(M3, observer=observer) as (engine, backend):
        close_gate(backend)
        with pytest.raises(TimedOut):
            await engine.answer(EmbedRequest(inputs=["a"]), Caller(deadline_s=time.monotonic() + 0.05))
        backend.gate.set()
    assert [ended.error for ended in observer.reports] == ["TimedOut"]


async def test_a_request_that_waits_too_long_is_reported_as_refused() -> None:
    """Each type of request waits for its own place."""
    models, observer = [M3, CROSS_ENCODER], Recorder()
    backends = [backend_for(model) for model in models]
    limits = {"max_concurrent_requests": 1, "max_concurrent_reranks": 1, "queue_timeout_s": 0.01}
    async with serving(*backends, models=models, observer=observer, **limits) as engine:
        for backend in backends:
            close_gate(backend)
        rank = RerankRequest(query="q", passages=["a"])
        running = [asyncio.create_task(engine.answer(one, ASKER)) for one in (EmbedRequest(inputs=["a"]), rank)]
        for backend in backends:
            await entered(backend)
        for request in (EmbedRequest(inputs=["b"]), rank):
            with pytest.raises(QueueTimedOut):
                await engine.answer(request, ASKER)
        refused = [("embed", "QueueTimedOut"), ("rerank", "QueueTimedOut")]
        assert [(ended.operation, ended.error) for ended in observer.reports] == refused
        for backend in backends:
            backend.gate.set()
        await asyncio.gather(*running)
