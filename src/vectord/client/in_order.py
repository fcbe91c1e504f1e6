"""Several requests at once, their answers in the order of the requests, never more under way or waiting than a few.

So a list that does not fit into memory goes through, and the error a call ends with is that of its first bad text,
whichever request failed first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

AHEAD = 2  # requests sent or answered ahead of the one that is waited for, in times of those that run at once


def in_order(
    work: Callable[[Asked], Answer], asked: Iterable[Asked], concurrency: int
) -> Generator[tuple[Asked, Answer]]:
    """Each of `asked` with its answer. `work` runs in threads; closing the iterator does not wait for those."""
    if concurrency == 1:
        for one in asked:
            yield one, work(one)
        return
    pool = ThreadPoolExecutor(concurrency, "vectord-client")
    window: deque[tuple[Asked, Future[Answer]]] = deque()
    try:
        for one in asked:
            window.append((one, pool.submit(work, one)))
            if len(window) == AHEAD * concurrency:
                first, answer = window.popleft()
                yield first, answer.result()
        for first, answer in window:
            yield first, answer.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


async def in_order_async(
    work: Callable[[Asked], Awaitable[Answer]], asked: Iterable[Asked], concurrency: int
) -> AsyncGenerator[tuple[Asked, Answer]]:
    """The same in tasks; closing the iterator cancels them, and the server with them."""
    room = asyncio.Semaphore(concurrency)

    async def answer_of(one: Asked) -> Answer:
        async with room:
            return await work(one)

    window: deque[tuple[Asked, asyncio.Task[Answer]]] = deque()
    try:
        for one in asked:
            window.append((one, asyncio.create_task(answer_of(one))))
            if len(window) == AHEAD * concurrency:
                first, answer = window[0]
                yield first, await answer
                window.popleft()
        for first, answer in window:
            yield first, await answer
    finally:
        for _, answer in window:
            answer.cancel()
        await asyncio.gather(*(answer for _, answer in window), return_exceptions=True)
