"""Deadlines: work that is late is cancelled, which removes it from the queue, and ends in an error.

Called by engine.py on the event loop. A running forward is not interrupted; its answer goes to the cache.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from vectord.errors import InferenceTimedOut, TimedOut, VectordError

T = TypeVar("T")


def earliest(deadline_s: float | None, timeout_s: float) -> float:
    """The caller's deadline or `timeout_s` from now, whichever comes first."""
    own_s = time.monotonic() + timeout_s
    return own_s if deadline_s is None else min(own_s, deadline_s)


def passed(deadline_s: float | None) -> bool:
    return deadline_s is not None and deadline_s <= time.monotonic()


async def before(deadline_s: float | None, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. deadline_s: by time.monotonic(); None: no limit. Raises TimedOut."""
    if deadline_s is None:
        return await work
    late = TimedOut("The request was not finished by its deadline.")
    if passed(deadline_s):
        work.close()
        raise late
    return await _within(deadline_s - time.monotonic(), work, late)


async def within(timeout_s: float, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. timeout_s: 0: no limit. Raises InferenceTimedOut."""
    if not timeout_s:
        return await work
    return await _within(
        timeout_s, work, InferenceTimedOut("The model did not answer within {limit} s.", limit=timeout_s)
    )


async def _within(left_s: float, work: Coroutine[Any, Any, T], late: VectordError) -> T:
    try:
        async with asyncio.timeout(left_s) as scope:
            return await work
    except TimeoutError as cause:
        if scope.expired():
            raise late from cause
        raise
