"""Runs a few requests at once and yields their results in the order of the requests.

The window of requests is bounded, so that a list need not fit into memory. A call fails with the error of its first bad
text, no matter which request failed first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

In = TypeVar("In")
Out = TypeVar("Out")

WINDOW = 2  # maximum requests without a yielded result, running or finished, as a multiple of the concurrency


def in_order(work: Callable[[In], Out], requests: Iterable[In], concurrency: int) -> Generator[tuple[In, Out]]:
    """Each request with its result. `work` runs in threads; closing the generator does not wait for them."""
    if concurrency == 1:
        for request in requests:
            yield request, work(request)
        return
    pool = ThreadPoolExecutor(concurrency, "vectord-client")
    window: deque[tuple[In, Future[Out]]] = deque()
    try:
        for request in requests:
            window.append((request, pool.submit(work, request)))
            if len(window) == WINDOW * concurrency:
                first, result = window.popleft()
                yield first, result.result()
        for first, result in window:
            yield first, result.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


async def in_order_async(
    work: Callable[[In], Awaitable[Out]], requests: Iterable[In], concurrency: int
) -> AsyncGenerator[tuple[In, Out]]:
    """Each request with its result. `work` runs in tasks; closing the generator cancels them, and the server's work."""
    slots = asyncio.Semaphore(concurrency)

    async def run(request: In) -> Out:
        async with slots:
            return await work(request)

    window: deque[tuple[In, asyncio.Task[Out]]] = deque()
    try:
        for request in requests:
            window.append((request, asyncio.create_task(run(request))))
            if len(window) == WINDOW * concurrency:
                first, result = window[0]
                yield first, await result
                window.popleft()
        for first, result in window:
            yield first, await result
    finally:
        for _, result in window:
            result.cancel()
        await asyncio.gather(*(result for _, result in window), return_exceptions=True)
