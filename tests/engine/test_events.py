"""What the engine tells whoever watches."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.engine.fakes import M3, FakeBackend, Recorder, close_gate, entered, serving, serving_one, settle

from vectord.errors import ModelNotFound, TimedOut
from vectord.schema import Caller, EmbedRequest, RerankRequest

ASKER = Caller(client="search", named=True, route="/v1/embeddings")


async def test_a_report_names_who_asked_where_and_how_long_each_text_is() -> None:
    """For the labels of the metrics."""
    observer = Recorder()
    async with serving_one(M3, observer=observer) as (engine, _):
        result = await engine.answer(EmbedRequest(inputs=["ab", "cdef"]), ASKER)
    (told,) = observer.reports
    assert (told.caller, told.operation, told.model, told.error) == (ASKER, "embed", "m0", None)
    assert told.lengths == result.usage.lengths  # type: ignore[union-attr]
    assert (told.texts, told.tokens) == (2, result.usage.tokens)  # type: ignore[union-attr]


async def test_timings_of_the_request_are_those_of_its_first_and_last_forward() -> None:
    """Three texts, a forward each: it waited once and computed three times, and the means are of one text."""
    async with serving(FakeBackend(), max_batch_texts=1, cache_bytes=0) as engine:
        result = await engine.answer(EmbedRequest(inputs=["a", "b", "c"]), ASKER)
    times = result.usage.timings  # type: ignore[union-attr]
    assert 0 <= times.waiting_s <= times.queue_s
    assert times.computing_s >= times.inference_s > 0
    assert times.tokenizing_s == pytest.approx(3 * times.tokenize_s)
    assert times.tokenizing_s + times.waiting_s + times.computing_s <= times.total_s


async def test_what_the_cache_knew_took_no_time() -> None:
    """No wait, no forward."""
    async with serving_one(M3) as (engine, _):
        for _ in range(2):
            result = await engine.answer(EmbedRequest(inputs=["a"]), ASKER)
    times = result.usage.timings  # type: ignore[union-attr]
    assert (times.waiting_s, times.computing_s) == (0, 0)


async def test_who_is_under_way_is_told_at_both_ends() -> None:
    """Whether it is answered, fails or leaves; gauges made of it return to 0."""
    observer = Recorder()
    async with serving_one(M3, observer=observer) as (engine, backend):
        close_gate(backend)
        asked = asyncio.create_task(engine.answer(EmbedRequest(inputs=["a"]), ASKER))
        await entered(backend)
        assert observer.active == ["embed"]
        asked.cancel()
        await settle()
        assert observer.active == []
        backend.gate.set()
        with pytest.raises(ModelNotFound):
            await engine.answer(RerankRequest(query="a", passages=["b"], model="?"), ASKER)
    assert observer.active == []


async def test_a_batch_is_told_with_its_lanes_and_its_padding() -> None:
    """Where the backend pads: the longest text times the texts, less their own tokens."""
    observer = Recorder()
    async with serving(FakeBackend(cost="padded"), observer=observer, cache_bytes=0) as engine:
        observer.batch_reports.clear()
        await engine.answer(EmbedRequest(inputs=["a", "bcdef"]), Caller(lane="bulk"))
    (told,) = observer.batch_reports
    assert told.texts == 2
    assert told.padding_tokens == 4
    assert (told.bulk_tokens, told.scores, told.streams, told.max_tokens) == (told.tokens, False, 1, 256)


async def test_a_deadline_that_passed_is_no_caller_who_left() -> None:
    """The one is the server's slowness, the other the client's choice."""
    observer = Recorder()
    async with serving_one(M3, observer=observer) as (engine, backend):
        close_gate(backend)
        with pytest.raises(TimedOut):
            await engine.answer(EmbedRequest(inputs=["a"]), Caller(deadline_s=time.monotonic() + 0.05))
        backend.gate.set()
    assert [told.error for told in observer.reports] == ["TimedOut"]
