"""in_order.py: results in the order of the requests, with limited concurrency."""

from __future__ import annotations

import asyncio
import itertools
import threading
from contextlib import aclosing, closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vectord.client.in_order import WINDOW, in_order, in_order_async


class Room:
    """Work that counts how much of it runs at once."""

    def __init__(self) -> None:
        self.most = self.now = self.begun = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self.begun += 1
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self.now -= 1


@given(st.lists(st.integers()), st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_results_are_in_order(numbers, concurrency):
    """In threads."""
    assert list(in_order(lambda n: n * 2, numbers, concurrency)) == [(n, n * 2) for n in numbers]


@given(st.lists(st.integers(0, 5)), st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_results_are_in_order_in_tasks(numbers, concurrency):
    """Regardless of how long each task takes."""

    async def work(turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return turns * 2

    async def main() -> list[tuple[int, int]]:
        return [pair async for pair in in_order_async(work, numbers, concurrency)]

    assert asyncio.run(main()) == [(n, n * 2) for n in numbers]


def test_a_slow_request_does_not_delay_others():
    """The second and third finish while the first is running."""
    others_done = threading.Semaphore(0)

    def work(n: int) -> int:
        if n == 0:
            assert others_done.acquire(timeout=10)
            assert others_done.acquire(timeout=10)
        else:
            others_done.release()
        return n

    assert [n for n, _ in in_order(work, range(3), 2)] == [0, 1, 2]


def test_the_concurrency_is_limited():
    """A barrier makes sure that the limit is reached."""
    room, full = Room(), threading.Barrier(3)

    def work(n: int) -> int:
        with room:
            full.wait(timeout=10)
        return n

    assert len(list(in_order(work, range(12), 3))) == 12
    assert room.most == 3


async def test_the_concurrency_is_limited_in_tasks():
    """More tasks exist, and wait."""
    room = Room()

    async def work(n: int) -> int:
        with room:
            await asyncio.sleep(0)
        return n

    assert [n async for n, _ in in_order_async(work, range(12), 3)] == list(range(12))
    assert room.most == 3


def test_an_endless_list_is_read_in_a_window():
    """It is read only while results are consumed."""
    read = itertools.count()
    with closing(in_order(lambda n: n, read, 3)) as answers:
        assert next(answers) == (0, 0)
        assert next(read) == WINDOW * 3


async def test_an_endless_list_is_read_in_a_window_in_tasks():
    """As in threads."""
    read = itertools.count()

    async def work(n: int) -> int:
        return n

    async with aclosing(in_order_async(work, read, 3)) as answers:
        assert await anext(answers) == (0, 0)
        assert next(read) == WINDOW * 3


def test_the_error_is_that_of_the_first_request_in_order():
    """Although the second one failed earlier."""
    second_failed = threading.Event()

    def work(n: int) -> int:
        if n == 0:
            assert second_failed.wait(timeout=10)
            raise ValueError("first")
        second_failed.set()
        raise ValueError("second")

    with pytest.raises(ValueError, match="first"):
        list(in_order(work, range(2), 2))


def test_closing_does_not_wait_and_starts_nothing():
    """The caller continues at once."""
    room, may_end = Room(), threading.Event()

    def work(n: int) -> int:
        with room:
            if n:
                may_end.wait(timeout=10)
        return n

    with closing(in_order(work, itertools.count(), 2)) as answers:
        next(answers)
    begun = room.begun
    may_end.set()
    assert begun <= 1 + 2


async def test_closing_cancels_the_running_tasks():
    """And waits for their end."""
    room = Room()

    async def work(n: int) -> int:
        with room:
            if n:
                await asyncio.Event().wait()
        return n

    async with aclosing(in_order_async(work, itertools.count(), 2)) as answers:
        await anext(answers)
        await asyncio.sleep(0)
    assert room.now == 0


async def test_an_error_cancels_the_running_tasks():
    """The first error in order ends the call."""
    room = Room()

    async def work(n: int) -> int:
        with room:
            if n == 0:
                await asyncio.sleep(0)
                raise ValueError("first")
            await asyncio.Event().wait()
        return n

    with pytest.raises(ValueError, match="first"):
        [n async for n, _ in in_order_async(work, range(4), 2)]
    assert room.now == 0


def test_a_concurrency_of_one_needs_no_thread():
    """The request runs in the caller's thread."""
    assert list(in_order(lambda n: threading.current_thread(), [1], 1)) == [(1, threading.current_thread())]
