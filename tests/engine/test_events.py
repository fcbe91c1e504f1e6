"""The events that the engine reports, and its statistics since the start."""

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

from vectord.engine.engine import Engine
from vectord.errors import InputTooLong, ModelNotFound, Overloaded, QueueTimedOut, TimedOut
from vectord.schema import (
    Caller,
    ChunkOptions,
    DocumentsRequest,
    EmbedRequest,
    RerankRequest,
    ShowStatistics,
    Statistics,
    TokenizeRequest,
)

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


ANYONE = Caller()


async def show(engine: Engine) -> Statistics:
    result = await engine.answer(ShowStatistics(), ANYONE)
    assert isinstance(result, Statistics)
    return result


async def test_answered_embedding_requests_are_counted():
    """With their texts; not failed requests and other operations."""
    async with serving_one(M3) as (engine, _):
        for inputs in (["a", "b"], ["c"]):
            await engine.answer(EmbedRequest(inputs=inputs), ANYONE)
        await engine.answer(DocumentsRequest(documents=["abcdef"], chunks=ChunkOptions(max_tokens=4)), ANYONE)
        await engine.answer(TokenizeRequest(inputs=["ab"]), ANYONE)
        with pytest.raises(InputTooLong):
            await engine.answer(EmbedRequest(inputs=["x" * 100]), ANYONE)
        shown = await show(engine)
    assert (shown.embed_requests, shown.embed_texts, shown.refused_requests) == (3, 4, 0)
    assert shown.device == "cpu"


async def test_batches_of_the_self_test_are_not_counted():
    """Only those of requests, failed ones included."""
    backend = FakeBackend()
    async with serving(backend, cache_bytes=0) as engine:
        assert (await show(engine)).batches == 0
        for text in ("a", "b", "a"):
            await engine.answer(EmbedRequest(inputs=[text]), ANYONE)
        assert (await show(engine)).batches == len(backend.batches) == 3


async def test_batches_of_a_reranker_are_not_counted():
    """Smart Embedder's figures count embedding only."""
    models = [M3, CROSS_ENCODER]
    backends = [backend_for(model) for model in models]
    async with serving(*backends, models=models, cache_bytes=0) as engine:
        await engine.answer(RerankRequest(query="q", passages=["a"], model="m1"), ANYONE)
        assert (await show(engine)).batches == 0
        assert len(backends[1].batches) == 1
        await engine.answer(EmbedRequest(inputs=["a"]), ANYONE)
        assert (await show(engine)).batches == 1


async def test_requests_that_wait_too_long_are_refused_ones():
    """Each type of request for its own place."""
    models = [M3, CROSS_ENCODER]
    backends = [backend_for(model) for model in models]
    limits = {"max_concurrent_requests": 1, "max_concurrent_reranks": 1, "queue_timeout_s": 0.01}
    async with serving(*backends, models=models, **limits) as engine:
        for backend in backends:
            close_gate(backend)
        rank = RerankRequest(query="q", passages=["a"])
        running = [asyncio.create_task(engine.answer(one, ANYONE)) for one in (EmbedRequest(inputs=["a"]), rank)]
        for backend in backends:
            await entered(backend)
        for request in (EmbedRequest(inputs=["b"]), rank):
            with pytest.raises(QueueTimedOut):
                await engine.answer(request, ANYONE)
        assert (await show(engine)).refused_requests == 2
        for backend in backends:
            backend.gate.set()
        await asyncio.gather(*running)


async def test_refused_requests_are_counted():
    """For any full queue, and by the server's rate limits."""
    backend = FakeBackend()
    async with serving(backend, max_concurrent_requests=1) as engine:
        close_gate(backend)
        first = asyncio.create_task(engine.answer(EmbedRequest(inputs=["a"]), ANYONE))
        await entered(backend)
        for _ in range(2):
            with pytest.raises(Overloaded):
                await engine.answer(EmbedRequest(inputs=["b"]), ANYONE)
        assert (await show(engine)).refused_requests == 2  # answered by a full server
        engine.rate_limited = lambda: 1
        assert (await show(engine)).refused_requests == 3
        backend.gate.set()
        await first
