"""Several engines behind sockets of their own: a front-end sees one, with the devices of all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest
from tests.cluster.remote.linked import Linked, front_end, linked
from tests.server.fakes import MODEL, FakeEngine
from tests.server.live import until

from vectord.cluster.remote.client import RemoteEngine
from vectord.cluster.remote.several import RemoteEngines
from vectord.errors import ShuttingDown, Unavailable
from vectord.schema import ANYONE, Caller, EmbedRequest, EmbedResult, ListModels, LoadModel, ModelList

ONE = EmbedRequest(inputs=["text"])


@asynccontextmanager
async def several(*fakes: FakeEngine) -> AsyncIterator[tuple[RemoteEngines, list[Linked]]]:
    async with AsyncExitStack() as stack:
        found = [await stack.enter_async_context(linked(fake)) for fake in fakes]
        links = [await stack.enter_async_context(front_end(one)) for one in found]
        yield RemoteEngines([RemoteEngine(link) for link in links]), found


def held_back() -> FakeEngine:
    fake = FakeEngine()
    fake.gate.clear()
    return fake


async def away(found: Linked) -> None:
    """Its process is gone."""
    found.server.abort()
    await found.server.close()


async def test_a_request_goes_where_least_is_under_way() -> None:
    """By the size of what is asked, not by the number of requests."""
    fakes = [held_back(), held_back()]
    async with several(*fakes) as (engines, _):
        long, short = EmbedRequest(inputs=["word " * 100]), EmbedRequest(inputs=["word"])
        asking = [asyncio.create_task(engines.answer(long, ANYONE))]
        await fakes[0].entered.acquire()
        for _ in range(3):
            asking.append(asyncio.create_task(engines.answer(short, ANYONE)))
            await fakes[1].entered.acquire()
        assert (fakes[0].running, fakes[1].running) == (1, 3)
        for fake in fakes:
            fake.gate.set()
        assert all(isinstance(answer, EmbedResult) for answer in await asyncio.gather(*asking))


async def test_an_engine_that_is_away_is_not_asked() -> None:
    """The others answer; probes stay green while one of them does."""
    fakes = [FakeEngine(), FakeEngine()]
    async with several(*fakes) as (engines, found):
        await away(found[0])
        await until(lambda: len(engines._living()) == 1)
        for _ in range(3):
            assert isinstance(await engines.answer(ONE, ANYONE), EmbedResult)
        assert len(fakes[1].callers) == 3
        assert engines.readiness() == {MODEL: "ready"}
        await away(found[1])
        await until(lambda: not engines._living())
        assert engines.readiness() == {MODEL: "stalled"}
        with pytest.raises(Unavailable):
            await engines.answer(ONE, ANYONE)
        with pytest.raises(Unavailable):
            await engines.answer(ListModels(), ANYONE)


async def test_an_engine_whose_device_is_lost_is_asked_last() -> None:
    """It would fail at once, and so always seem to have least to do."""
    fakes = [FakeEngine(), FakeEngine()]
    async with several(*fakes) as (engines, found):
        fakes[0].states = {MODEL: "stalled"}
        found[0].server.announce()
        await until(lambda: engines._engines[0].readiness() == {MODEL: "stalled"})
        for _ in range(3):
            await engines.answer(ONE, ANYONE)
        assert (len(fakes[0].callers), len(fakes[1].callers)) == (0, 3)


async def test_equals_are_asked_in_turn() -> None:
    """Or one device would rest."""
    fakes = [FakeEngine(), FakeEngine()]
    async with several(*fakes) as (engines, _):
        for _ in range(6):
            await engines.answer(ONE, ANYONE)
        assert [len(fake.callers) for fake in fakes] == [3, 3]


async def test_who_computes_in_other_numbers_is_not_asked(caplog: pytest.LogCaptureFixture) -> None:
    """A text would have two vectors; the log says what to do, once."""

    class Half(FakeEngine):
        def models(self, caller: Caller = ANYONE) -> ModelList:
            listed = super().models(caller)
            return replace(listed, models=[replace(info, dtype="float16") for info in listed.models])

    fakes = [FakeEngine(), Half()]
    async with several(*fakes) as (engines, _):
        for _ in range(4):
            await engines.answer(ONE, ANYONE)
        assert [len(fake.callers) for fake in fakes] == [4, 0]
    assert [record.levelname for record in caplog.records if "--dtype" in record.getMessage()] == ["ERROR"]


async def test_what_ended_its_process_is_tried_nowhere_else() -> None:
    """It might end the next one, too."""
    fakes = [held_back(), FakeEngine()]
    async with several(*fakes) as (engines, found):
        asking = asyncio.create_task(engines.answer(ONE, ANYONE))
        await fakes[0].entered.acquire()
        await away(found[0])
        with pytest.raises(Unavailable):
            await asking
        assert fakes[1].callers == []


async def test_what_one_cannot_answer_yet_another_does() -> None:
    """Its model is loading, or its device is lost; if all say so, the last word is told."""
    fakes = [FakeEngine(), FakeEngine()]
    fakes[0].error = Unavailable("The model is loading.")
    async with several(*fakes) as (engines, _):
        assert isinstance(await engines.answer(ONE, ANYONE), EmbedResult)
        fakes[1].error = Unavailable("The model is loading.")
        with pytest.raises(Unavailable, match="loading"):
            await engines.answer(ONE, ANYONE)


async def test_all_are_asked_to_load() -> None:
    """And their models are one list; the first failure is told when all have answered."""
    fakes = [FakeEngine(), FakeEngine()]
    async with several(*fakes) as (engines, _):
        assert isinstance(await engines.answer(LoadModel(model=MODEL), ANYONE), ModelList)
        assert [len(fake.callers) for fake in fakes] == [1, 1]
        listed = await engines.answer(ListModels(), ANYONE)
        assert isinstance(listed, ModelList)
        assert [info.name for info in listed.models] == [MODEL]
        fakes[1].error = Unavailable("no room")
        with pytest.raises(Unavailable, match="no room"):
            await engines.answer(LoadModel(model=MODEL), ANYONE)


async def test_draining_waits_for_all() -> None:
    """And refuses from then on."""
    fakes = [held_back(), held_back()]
    async with several(*fakes) as (engines, _):
        asking = [asyncio.create_task(engines.answer(ONE, ANYONE)) for _ in fakes]
        for fake in fakes:
            await fake.entered.acquire()
        draining = asyncio.create_task(engines.drain())
        await until(lambda: all(engine._draining for engine in engines._engines))
        with pytest.raises(ShuttingDown):
            await engines.answer(ONE, ANYONE)
        fakes[0].gate.set()
        await asking[0]
        assert not draining.done()
        fakes[1].gate.set()
        await draining
        await asyncio.gather(*asking)
