"""The engine's gauges: its present state."""

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
    settle,
)

from vectord.engine.models.registry import CompositeSource
from vectord.errors import Overloaded
from vectord.schema import Caller, DeviceMemory, EmbedRequest, RerankRequest

BULK = Caller(client="indexer", lane="bulk")


async def test_queued_tokens_are_counted_by_lane() -> None:
    """With active requests and places. The queue is empty again afterwards."""
    async with serving_one(M3) as (engine, backend):
        close_gate(backend)
        work = [asyncio.create_task(engine.answer(EmbedRequest(inputs=["first"]), Caller()))]
        await entered(backend)
        work += [
            asyncio.create_task(engine.answer(EmbedRequest(inputs=["bulk text"]), BULK)),
            asyncio.create_task(engine.answer(EmbedRequest(inputs=["me"]), Caller())),
        ]
        await settle()
        shown = engine.gauges()
        assert shown.queued_tokens["bulk"] > shown.queued_tokens["interactive"] > 0
        assert (shown.under_way, shown.places > 3) == (3, True)
        backend.gate.set()
        await asyncio.gather(*work)
        shown = engine.gauges()
    assert (dict(shown.queued_tokens), shown.under_way) == ({"interactive": 0, "bulk": 0}, 0)
    assert (shown.cached_texts, shown.cache_bytes > 0) == (3, True)


async def test_queued_requests_for_vectors_are_counted() -> None:
    """One per request, whatever its texts and models; not running ones, nor pairs of a query and a passage."""
    models = [M3, CROSS_ENCODER, M3]
    backends = [backend_for(model) for model in models]
    both = CompositeSource("both", {"dense": "m0", "sparse": "m2"})
    async with serving(*backends, models=models, composites=[both], cache_bytes=0) as engine:
        for backend in backends:
            close_gate(backend)
        work = [asyncio.create_task(engine.answer(EmbedRequest(inputs=["first"]), Caller()))]
        work.append(asyncio.create_task(engine.answer(EmbedRequest(inputs=["first"], model="m2"), Caller())))
        work.append(asyncio.create_task(engine.answer(RerankRequest(query="q", passages=["p"]), Caller())))
        for backend in backends:
            await entered(backend)
        assert engine.gauges().queued_embeds == 0
        for request in (
            EmbedRequest(inputs=["a", "b", "c"]),
            EmbedRequest(inputs=["d"], model="both", outputs=frozenset({"dense", "sparse"})),
            RerankRequest(query="q", passages=["r", "s"]),
        ):
            work.append(asyncio.create_task(engine.answer(request, Caller())))
        await settle()
        assert engine.gauges().queued_embeds == 2
        for backend in backends:
            backend.gate.set()
        await asyncio.gather(*work)
        assert engine.gauges().queued_embeds == 0


@pytest.mark.parametrize("counts", [True, False])
async def test_running_requests_take_a_place_of_the_queue_only_where_they_count(counts: bool) -> None:
    """With one place and `count_running_requests` off, one request runs, one is queued, and the next is refused."""
    async with serving_one(M3, max_concurrent_requests=1, count_running_requests=counts) as (engine, backend):
        close_gate(backend)
        work = [asyncio.create_task(engine.answer(EmbedRequest(inputs=["first"]), Caller()))]
        await entered(backend)
        if not counts:
            work.append(asyncio.create_task(engine.answer(EmbedRequest(inputs=["second", "third"]), Caller())))
            await settle()
        with pytest.raises(Overloaded):
            await engine.answer(EmbedRequest(inputs=["one too many"]), Caller())
        assert engine.gauges().queued_embeds == len(work) - 1
        backend.gate.set()
        await asyncio.gather(*work)


async def test_a_queue_without_running_requests_has_no_extra_place() -> None:
    """Smart Embedder's MAX_QUEUE_SIZE is exact: another client than the busiest gets no further place."""
    async with serving_one(M3, max_concurrent_requests=4, count_running_requests=False) as (engine, backend):
        close_gate(backend)
        work = [asyncio.create_task(engine.answer(EmbedRequest(inputs=["first"]), Caller(client="busy")))]
        await entered(backend)
        for index in range(4):
            request = EmbedRequest(inputs=[f"queued {index}"])
            work.append(asyncio.create_task(engine.answer(request, Caller(client="busy"))))
        await settle()
        assert engine.gauges().queued_embeds == 4
        with pytest.raises(Overloaded):
            await engine.answer(EmbedRequest(inputs=["one too many"]), Caller(client="another"))
        backend.gate.set()
        await asyncio.gather(*work)


class OnItsOwnDevice(FakeBackend):
    def device_memory(self) -> DeviceMemory | None:
        return DeviceMemory(allocated=1, reserved=2, free=3, total=5)


async def test_the_memory_of_devices_is_measured() -> None:
    """Not the processor's."""
    own = OnItsOwnDevice()
    async with serving(own) as engine:
        assert engine.gauges().devices == {"cpu": DeviceMemory(allocated=1, reserved=2, free=3, total=5)}
    async with serving(FakeBackend()) as engine:
        assert engine.gauges().devices == {}
