"""Tokenizing threads: results in order, and long requests in parts so that others run in between."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.fakes import MAX_TOKENS, ByteEncoder

from vectord.engine.operations.pool import (
    INPUT_CHARACTERS,
    LONG_AT_ONCE,
    PART_CHARACTERS,
    PART_INPUTS,
    EncoderPool,
    _parts,
)
from vectord.errors import InputTooLong, Unavailable
from vectord.schema import TextOptions
from vectord.text.sequence import ReadRequest


@pytest.fixture
def pool():
    pool = EncoderPool(2)
    yield pool
    pool.close()


async def encode(pool, encoder, inputs, *, truncate=True):
    request = ReadRequest(inputs=inputs, options=TextOptions(), truncate=truncate)
    return await pool.spread(inputs, partial(encoder.read, request))


@pytest.mark.parametrize(
    "inputs",
    [["a"], ["a"] * 3000, ["ab" * 40_000, "c", "d" * 70_000], [[1, 2], "a"], [""] * 600],
    ids=["one", "many", "long ones", "ids", "empty texts"],
)
async def test_results_have_the_order_of_the_inputs(pool, inputs):
    """Regardless of how the request is cut into parts."""
    encoded = await encode(pool, ByteEncoder(), [*inputs, "end"])
    whole = ByteEncoder().read(ReadRequest(inputs=[*inputs, "end"], options=TextOptions(), truncate=True))
    assert [one.ids.tolist() for one in encoded] == [one.ids.tolist() for one in whole]


async def test_short_texts_are_tokenized_on_the_loop(pool):
    """The way to a thread costs more than tokenizing them."""
    encoder = ByteEncoder()
    await encode(pool, encoder, ["a query of some words"])
    assert encoder.threads == {threading.current_thread().name}


@pytest.mark.parametrize("inputs", [["a" * 2001], ["a"] * 100, [[1] * 600]], ids=["long", "many", "ids"])
async def test_longer_texts_are_tokenized_on_a_thread(pool, inputs):
    """The event loop stays free."""
    encoder = ByteEncoder()
    await encode(pool, encoder, inputs)
    assert threading.current_thread().name not in encoder.threads


async def test_an_error_has_the_index_in_the_whole_request(pool):
    """The first of several errors is raised."""
    inputs = ["a"] * 3000
    inputs[2500] = inputs[2900] = "b" * (MAX_TOKENS + 1)
    with pytest.raises(InputTooLong) as refused:
        await encode(pool, ByteEncoder(), inputs, truncate=False)
    assert refused.value.index == 2500


async def test_a_long_request_uses_each_thread_once_at_a_time(pool):
    """Other requests run between its waves."""
    at_once = most = 0

    class Counting(ByteEncoder):
        def read(self, *args, **kwargs):
            nonlocal at_once, most
            with lock:
                at_once += 1
                most = max(most, at_once)
            try:
                return super().read(*args, **kwargs)
            finally:
                with lock:
                    at_once -= 1

    lock = threading.Lock()
    waiting = []
    submit = pool._threads.submit
    pool._threads.submit = lambda *call: (waiting.append(pool._threads._work_queue.qsize()), submit(*call))[1]
    await encode(pool, Counting(), ["a" * 60] * 5000)
    assert most <= 2
    assert max(waiting) <= 2


async def test_long_requests_are_limited(pool):
    """Waiting ones have no tokens in memory, and a short request does not wait for them."""
    unfinished = most = 0

    async def read() -> None:
        nonlocal unfinished, most
        begun = False

        def encode(part: range) -> list[int]:
            nonlocal begun, unfinished, most
            with lock:
                unfinished += not begun
                begun = True
                most = max(most, unfinished)
            return list(part)

        assert await pool.spread(["a" * 60] * 1000, encode) == list(range(1000))
        with lock:
            unfinished -= 1

    lock = threading.Lock()
    reading = [asyncio.create_task(read()) for _ in range(3 * LONG_AT_ONCE)]
    await asyncio.sleep(0)
    assert await pool.spread(["short"], list) == [0]
    assert not any(each.done() for each in reading)
    await asyncio.gather(*reading)
    assert most <= LONG_AT_ONCE


async def test_closing_answers_callers_that_wait_for_a_thread():
    """With Unavailable, and later callers too."""
    pool, gate, waiting = EncoderPool(1), threading.Event(), threading.Event()

    def hold() -> bool:
        waiting.set()
        return gate.wait(10)

    running = asyncio.create_task(pool.run(10_000, hold))
    queued = asyncio.create_task(pool.run(10_000, lambda: True))
    assert await asyncio.to_thread(waiting.wait, 10)
    pool.close()
    with pytest.raises(Unavailable):
        await queued
    with pytest.raises(Unavailable):
        await pool.run(10_000, lambda: True)
    gate.set()
    assert await running


@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=50) | st.integers(1, 1000).map(lambda n: [3] * n))
@settings(deadline=None, max_examples=60)
def test_parts_cover_every_input_once_and_stay_small(lengths):
    """A part is one long input, or several within the size of a part."""
    parts = list(_parts(["x" * length for length in lengths]))
    assert [index for part, _ in parts for index in part] == list(range(len(lengths)))
    for part, size in parts:
        assert len(part) <= PART_INPUTS
        assert size == sum(lengths[i] + INPUT_CHARACTERS for i in part)
        assert sum(lengths[i] + INPUT_CHARACTERS for i in part[:-1]) < PART_CHARACTERS
