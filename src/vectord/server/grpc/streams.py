"""A stream of messages answered in order, several at a time. Called by services.py; runs in the call's own task."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def in_order(
    messages: AsyncIterator[bytes],
    answer: Callable[[bytes], Coroutine[Any, Any, T]],
    deliver: Callable[[T], Awaitable[object]],
    *,
    at_once: int,
    limit_bytes: int,
) -> None:
    """Deliver what `answer` makes of each message, in their order. `at_once` of them, or those of `limit_bytes`, are
    being answered or wait to be taken; no more is read meanwhile but the next message, so that the sender waits.

    The first failure ends it, after the answers before it. However it ends, nothing that it began still runs.
    """
    reading: asyncio.Task[bytes | None] | None = asyncio.create_task(_next(messages))
    answering: deque[tuple[asyncio.Task[T], int]] = deque()
    held_bytes = 0
    try:
        while reading is not None or answering:
            has_room = len(answering) < at_once and held_bytes < limit_bytes
            oldest = answering[0][0] if answering else None
            awaited = [task for task in (oldest, reading if has_room else None) if task is not None]
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            if oldest is not None and oldest.done():
                held_bytes -= answering.popleft()[1]
                await deliver(oldest.result())
            elif reading is not None and reading.done():
                message = reading.result()
                reading = None
                if message is not None:
                    answering.append((asyncio.create_task(answer(message)), len(message)))
                    held_bytes += len(message)
                    reading = asyncio.create_task(_next(messages))
    finally:
        begun = [task for task, _ in answering] + ([reading] if reading is not None else [])
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)


async def _next(messages: AsyncIterator[bytes]) -> bytes | None:
    """None: there are no more."""
    return await anext(messages, None)
