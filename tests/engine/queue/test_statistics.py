"""What the engine says it has done since it started."""

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


async def test_requests_for_vectors_count_once_they_are_answered():
    """With their texts; not what failed, and not what wanted something else."""
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


async def test_batches_are_those_of_requests():
    """A model's self-test has run some, too, which nobody asked for; and a failed one was run."""
    backend = FakeBackend()
    async with serving(backend, cache_bytes=0) as engine:
        assert (await show(engine)).batches == 0
        for text in ("a", "b", "a"):
            await engine.answer(EmbedRequest(inputs=[text]), ANYONE)
        assert (await show(engine)).batches == len(backend.batches) == 3


async def test_batches_of_a_reranker_are_not_counted():
    """Smart Embedder's figures are of embedding alone."""
    models = [M3, CROSS_ENCODER]
    backends = [backend_for(model) for model in models]
    async with serving(*backends, models=models, cache_bytes=0) as engine:
        await engine.answer(RerankRequest(query="q", passages=["a"], model="m1"), ANYONE)
        assert (await show(engine)).batches == 0
        assert len(backends[1].batches) == 1
        await engine.answer(EmbedRequest(inputs=["a"]), ANYONE)
        assert (await show(engine)).batches == 1


async def test_requests_that_met_a_full_server_are_refused():
    """Each counts, whichever queue was full."""
    backend = FakeBackend()
    async with serving(backend, max_concurrent_requests=1) as engine:
        close_gate(backend)
        first = asyncio.create_task(engine.answer(EmbedRequest(inputs=["a"]), ANYONE))
        await entered(backend)
        for _ in range(2):
            with pytest.raises(Overloaded):
                await engine.answer(EmbedRequest(inputs=["b"]), ANYONE)
        assert (await show(engine)).refused_requests == 2  # asked on a full server
        backend.gate.set()
        await first


async def test_a_model_that_is_not_loaded_has_no_device():
    """The first that is has one."""
    async with serving(FakeBackend(), model_loading="first-use") as engine:
        assert (await show(engine)).device == "unknown"
        await engine.answer(EmbedRequest(inputs=["a"]), ANYONE)
        assert (await show(engine)).device == "cpu"


async def test_time_passes():
    """In seconds since the start."""
    async with serving_one(M3) as (engine, _):
        first, second = await show(engine), await show(engine)
    assert 0 <= first.uptime_s < second.uptime_s < 600
