"""The engine's gauges: its present state."""

from __future__ import annotations

import asyncio

from tests.engine.fakes import M3, FakeBackend, close_gate, entered, serving, serving_one, settle

from vectord.compute.backends.base import OwnMemory
from vectord.schema import Caller, DeviceMemory, EmbedRequest

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


class OnItsOwnDevice(FakeBackend):
    def device_memory(self) -> DeviceMemory | None:
        return DeviceMemory(allocated=1, reserved=2, free=3, total=5)


async def test_the_memory_of_devices_is_measured() -> None:
    """Not the processor's."""
    own = OnItsOwnDevice()
    assert isinstance(own, OwnMemory)
    async with serving(own) as engine:
        assert engine.gauges().devices == {"cpu": DeviceMemory(allocated=1, reserved=2, free=3, total=5)}
    async with serving(FakeBackend()) as engine:
        assert engine.gauges().devices == {}
