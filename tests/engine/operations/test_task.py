"""The tools of all operations: concurrent work, the places of errors, usage, and the tokenizing threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.fakes import MAX_TOKENS, ByteEncoder
from tests.refusals import refuses
from tests.text.makers import byte_level, make_encoder, read, unigram, varied_texts, wordpiece
from tokenizers import Tokenizer

from vectord.engine.operations.multi import PARTS_AT_ONCE, in_turns
from vectord.engine.operations.task import (
    INLINE_NUMBERS,
    INPUT_CHARACTERS,
    LONG_AT_ONCE,
    PART_CHARACTERS,
    PART_INPUTS,
    EncoderPool,
    Task,
    UseModel,
    _parts,
    compute,
    placing_errors,
    together,
)
from vectord.engine.queue.runner import ModelRunner
from vectord.errors import InferenceFailed, InputTooLong, Unavailable, Untokenizable, VectordError
from vectord.schema import Caller, Media, TextLength, TextLengths, TextOptions, Usage
from vectord.text.sequence import QUERY_INDEX, ReadRequest, Texts
from vectord.text.truncation import PIECE_CHARACTERS

IMAGE = Media(b"")


async def give(value: int) -> int:
    await asyncio.sleep(0)
    return value


@pytest.mark.parametrize("count", [1, 3])
async def test_results_come_back_in_order(count):
    """In any order of completion."""
    assert await together([give(n) for n in range(count)]) == list(range(count))


async def test_a_failure_ends_the_others_before_it_is_raised():
    """The request has no work left when its caller sees the error."""
    ended = asyncio.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def fail() -> None:
        await asyncio.sleep(0)
        raise InferenceFailed("no")

    with pytest.raises(InferenceFailed):
        await together([hang(), fail()])
    assert ended.is_set()


async def test_cancellation_ends_all():
    """Cancelling the whole cancels every coroutine."""
    ended: list[int] = []

    async def hang(n: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(n)

    task = asyncio.create_task(together([hang(0), hang(1)]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [0, 1]


async def test_of_thousands_a_limited_number_runs():
    """Each coroutine is made when it starts; the results are in order."""
    under_way = most = 0

    async def work(n: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(40 + n % 5):
            await asyncio.sleep(0)
        under_way -= 1
        return n

    assert await in_turns(work(n) for n in range(1000)) == list(range(1000))
    assert 1 < most <= PARTS_AT_ONCE


async def test_other_tasks_run_between_thousands():
    """Even if no coroutine waits."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def work() -> int:
        return turns

    counting = asyncio.create_task(count())
    seen = await in_turns(work() for _ in range(1000))
    counting.cancel()
    assert max(seen.count(turn) for turn in set(seen)) <= PARTS_AT_ONCE


async def test_after_a_failure_no_further_one_starts():
    """Running ones have ended before the error is raised."""
    begun: list[int] = []
    ended: list[int] = []

    async def work(n: int) -> None:
        begun.append(n)
        try:
            if n == 20:
                raise InferenceFailed("no")
            await asyncio.Event().wait()
        finally:
            ended.append(n)

    with pytest.raises(InferenceFailed):
        await in_turns(work(n) for n in range(1000))
    assert len(begun) <= PARTS_AT_ONCE
    assert sorted(ended) == begun


@pytest.mark.parametrize(("numbers", "inline"), [(INLINE_NUMBERS, True), (INLINE_NUMBERS + 1, False)])
async def test_large_array_operations_run_on_a_thread(numbers, inline):
    """Small ones run on the loop."""
    thread = await compute(numbers, threading.current_thread)
    assert (thread is threading.current_thread()) is inline


@pytest.mark.parametrize(
    ("error", "field", "index"),
    [
        (InputTooLong("{field}", index=3), None, 4),
        (InputTooLong("{field}"), None, None),
        (InputTooLong("{field}", index=QUERY_INDEX), "query", None),
        (InferenceFailed("failed", index=1), None, 0),
        (InferenceFailed("failed"), None, None),
        (InputTooLong("{field}", field="query"), "query", None),
    ],
    ids=["a piece", "the request", "the query", "a text that failed", "no text", "another field"],
)
def test_an_error_about_a_piece_has_the_index_of_its_input(error, field, index):
    """A client knows its documents, not their chunks; an error with a field keeps it."""
    with pytest.raises(VectordError) as raised, placing_errors(owners=[0, 0, 1, 4]):
        raise error
    assert (raised.value.field, raised.value.index) == (field, index)


def test_an_error_about_a_single_text_has_no_index():
    """A query is a string, not a list."""
    with pytest.raises(InputTooLong, match="`query` is too long") as raised, placing_errors("query"):
        raise InputTooLong("{field} is too long", index=0)
    assert (raised.value.field, raised.value.index) == ("query", None)


def test_all_tokens_that_ran_are_billed():
    """Those of a second model or of a query too."""
    assert (
        Usage(lengths=TextLengths.of([TextLength(5, 3), TextLength(2, 2)]), characters=9, further_tokens=4).tokens == 9
    )


@pytest.fixture
def pool():
    pool = EncoderPool(2)
    yield pool
    pool.close()


async def encode(pool, encoder, inputs, *, truncate=True):
    request = ReadRequest(inputs=inputs, options=TextOptions(), truncate=truncate)
    return Texts.join(await pool.spread(inputs, partial(encoder.read, request)))


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


@pytest.mark.parametrize("inputs", [["a" * 2001], ["a"] * 100, [[1] * 100]], ids=["long", "many", "ids"])
async def test_longer_texts_are_tokenized_on_a_thread(pool, inputs):
    """The event loop stays free. An id may stand for a text of many characters."""
    encoder = ByteEncoder()
    await encode(pool, encoder, inputs)
    assert threading.current_thread().name not in encoder.threads


async def test_images_among_texts_are_read_on_a_thread(pool):
    """In items of their own and in items with texts: decoding one takes up to a second."""
    for item in (Media(b""), ["a", Media(b"")]):
        (thread,) = await pool.spread([item], lambda part: threading.current_thread())
        assert thread is not threading.current_thread()


async def test_an_error_has_the_index_in_the_whole_request(pool):
    """The first of several errors is raised."""
    inputs = ["a"] * 3000
    inputs[2500] = inputs[2900] = "b" * (MAX_TOKENS + 1)
    with refuses(InputTooLong, index=2500):
        await encode(pool, ByteEncoder(), inputs, truncate=False)


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

        parts = await pool.spread(["a" * 60] * 1000, encode)
        assert [index for part in parts for index in part] == list(range(1000))
        with lock:
            unfinished -= 1

    lock = threading.Lock()
    reading = [asyncio.create_task(read()) for _ in range(3 * LONG_AT_ONCE)]
    await asyncio.sleep(0)
    assert await pool.spread(["short"], list) == [[0]]
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
def test_parts_cover_every_input_once_and_stay_small(lengths):
    """A part is one long input, or several within the size of a part."""
    parts = list(_parts(["x" * length for length in lengths]))
    assert [index for part, _ in parts for index in part] == list(range(len(lengths)))
    for part, size in parts:
        assert len(part) <= PART_INPUTS
        assert size == sum(lengths[i] + INPUT_CHARACTERS for i in part)
        assert sum(lengths[i] + INPUT_CHARACTERS for i in part[:-1]) < PART_CHARACTERS


@pytest.mark.parametrize("make", [unigram, byte_level, wordpiece], ids=lambda make: make.__name__)
async def test_the_tokens_of_a_text_of_any_length_are_counted(make: Callable[[], Tokenizer], tmp_path: Path) -> None:
    """Also those of the characters that are cut before tokenization; the index of an error is that of the input."""
    encoder = make_encoder(tmp_path, make(), max_tokens=64)
    texts = ["a", " ".join(varied_texts(700, longest=60))]
    assert len(texts[1]) > 3 * PIECE_CHARACTERS
    lengths = TextLengths.of([sequence.length for sequence in read(encoder, texts)])
    assert lengths[1].characters_cut
    runner = cast("ModelRunner", SimpleNamespace(tokenizer=encoder))
    with closing(EncoderPool(2)) as pool:
        task = Task(Caller(), pool, cast("UseModel", None), 10)
        frame = lengths[0].seen - encoder.count(["a"])[0]
        want = TextLength(len(make().encode(texts[1], add_special_tokens=False)) + frame, 64)
        assert await task.whole_lengths(runner, texts, lengths) == TextLengths.of([lengths[0], want])
        with refuses(Untokenizable, index=1):
            await task.whole_lengths(runner, [texts[0], texts[1][:-1] + "\ud800"], lengths)


async def test_texts_do_not_wait_for_images() -> None:
    """Nor for images among the parts of an input."""
    free, text = threading.Event(), "a" * PART_CHARACTERS
    with closing(EncoderPool(1)) as pool:
        task = Task(Caller(), pool, cast("UseModel", None), 10)
        held = [
            asyncio.ensure_future(task.encode_parts([one], lambda _: free.wait(9))) for one in (IMAGE, [text, IMAGE])
        ]
        await asyncio.sleep(0.05)
        assert await asyncio.wait_for(task.encode_parts([text], lambda _: "read"), 5) == ["read"]
        free.set()
        assert await asyncio.gather(*held) == [[True], [True]]
