"""The tools of all operations: concurrent work, the places of errors, and usage."""

from __future__ import annotations

import asyncio
import threading

import pytest

from vectord.engine.operations.multi import PARTS_AT_ONCE, in_turns
from vectord.engine.operations.task import INLINE_NUMBERS, compute, placing_errors, together
from vectord.errors import InferenceFailed, InputTooLong, VectordError
from vectord.schema import TextLength, Usage


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
        (InputTooLong("{field}", index=3), "documents", 4),
        (InputTooLong("{field}"), "documents", None),
        (InferenceFailed("failed", index=1), "documents", 0),
        (InferenceFailed("failed"), None, None),
        (InputTooLong("{field}", field="query"), "query", None),
    ],
    ids=["a piece", "the request", "a text that failed", "no text", "another field"],
)
def test_an_error_about_a_piece_names_its_input(error, field, index):
    """A client knows its documents, not their chunks; an error with a field keeps it."""
    with pytest.raises(VectordError) as raised, placing_errors("documents", 5, [0, 0, 1, 4]):
        raise error
    assert (raised.value.field, raised.value.index) == (field, index)


def test_an_error_about_a_single_text_has_no_index():
    """A query is a string, not a list."""
    with pytest.raises(InputTooLong, match="`query` is too long") as raised, placing_errors("query", 1):
        raise InputTooLong("{field} is too long", index=0)
    assert (raised.value.field, raised.value.index) == ("query", None)


def test_all_tokens_that_ran_are_billed():
    """Those of a second model or of a query too."""
    assert Usage(lengths=[TextLength(5, 3), TextLength(2, 2)], characters=9, further_tokens=4).tokens == 9
