"""Answers in the order of the requests, with only so many under way."""

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
def test_order_in_is_order_out(numbers, concurrency):
    """In threads."""
    assert list(in_order(lambda n: n * 2, numbers, concurrency)) == [(n, n * 2) for n in numbers]


@given(st.lists(st.integers(0, 5)), st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_order_in_is_order_out_in_tasks(numbers, concurrency):
    """However many turns of the loop each takes."""

    async def work(turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return turns * 2

    async def main() -> list[tuple[int, int]]:
        return [pair async for pair in in_order_async(work, numbers, concurrency)]

    assert asyncio.run(main()) == [(n, n * 2) for n in numbers]


def test_a_slow_first_one_holds_back_none_of_the_others():
    """The second and third are done while the first still runs."""
    others_done = threading.Semaphore(0)

    def work(n: int) -> int:
        if n == 0:
            assert others_done.acquire(timeout=10)
            assert others_done.acquire(timeout=10)
        else:
            others_done.release()
        return n

    assert [n for n, _ in in_order(work, range(3), 2)] == [0, 1, 2]


def test_no_more_run_at_once_than_may():
    """Threads wait for each other at a barrier, so that the room is full."""
    room, full = Room(), threading.Barrier(3)

    def work(n: int) -> int:
        with room:
            full.wait(timeout=10)
        return n

    assert len(list(in_order(work, range(12), 3))) == 12
    assert room.most == 3


async def test_no_more_tasks_run_at_once_than_may():
    """Tasks are made ahead, and wait for room."""
    room = Room()

    async def work(n: int) -> int:
        with room:
            await asyncio.sleep(0)
        return n

    assert [n async for n, _ in in_order_async(work, range(12), 3)] == list(range(12))
    assert room.most == 3


def test_an_endless_list_is_read_only_so_far_ahead():
    """Not at all before anybody asks for an answer, and no further while nobody takes one."""
    read = itertools.count()
    with closing(in_order(lambda n: n, read, 3)) as answers:
        assert next(answers) == (0, 0)
        assert next(read) == WINDOW * 3


async def test_an_endless_list_is_read_only_so_far_ahead_in_tasks():
    """The same under asyncio."""
    read = itertools.count()

    async def work(n: int) -> int:
        return n

    async with aclosing(in_order_async(work, read, 3)) as answers:
        assert await anext(answers) == (0, 0)
        assert next(read) == WINDOW * 3


def test_the_error_is_that_of_the_first_that_fails():
    """The second one fails at once, the first only then; what is raised is the first's."""
    second_failed = threading.Event()

    def work(n: int) -> int:
        if n == 0:
            assert second_failed.wait(timeout=10)
            raise ValueError("first")
        second_failed.set()
        raise ValueError("second")

    with pytest.raises(ValueError, match="first"):
        list(in_order(work, range(2), 2))


def test_closing_does_not_wait_for_what_runs_and_begins_nothing_more():
    """A caller who breaks off goes on at once."""
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


async def test_closing_cancels_the_tasks_under_way():
    """And waits until they have gone."""
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


async def test_an_error_cancels_the_tasks_under_way():
    """The first that fails ends the call."""
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


def test_one_at_a_time_takes_no_thread():
    """A single request runs where it is asked for."""
    assert list(in_order(lambda n: threading.current_thread(), [1], 1)) == [(1, threading.current_thread())]
