"""The engine's statistics since its start."""

from __future__ import annotations

import asyncio

import pytest
from tests.engine.fakes import (
    CROSS_ENCODER,
    M3,
    FakeBackend,
    backend_for,
    close_gate,
    entered,
    serving,
    serving_one,
)

from vectord.engine.engine import Engine
from vectord.errors import InputTooLong, Overloaded
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


async def test_refused_requests_are_counted():
    """For any full queue."""
    backend = FakeBackend()
    async with serving(backend, max_concurrent_requests=1) as engine:
        close_gate(backend)
        first = asyncio.create_task(engine.answer(EmbedRequest(inputs=["a"]), ANYONE))
        await entered(backend)
        for _ in range(2):
            with pytest.raises(Overloaded):
                await engine.answer(EmbedRequest(inputs=["b"]), ANYONE)
        assert (await show(engine)).refused_requests == 2  # answered by a full server
        backend.gate.set()
        await first


async def test_a_model_that_is_not_loaded_has_no_device():
    """After the load it has one."""
    async with serving(FakeBackend(), model_loading="first-use") as engine:
        assert (await show(engine)).device == "unknown"
        await engine.answer(EmbedRequest(inputs=["a"]), ANYONE)
        assert (await show(engine)).device == "cpu"


async def test_the_uptime_grows():
    """In seconds since the start."""
    async with serving_one(M3) as (engine, _):
        first, second = await show(engine), await show(engine)
    assert 0 <= first.uptime_s < second.uptime_s < 600
