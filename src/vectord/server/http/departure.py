"""Stops work whose client has left. Called by handler.py around every engine call, on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from vectord.server.http.hardening.body_limit import ClientLeft, Receive

T = TypeVar("T")

# Watching takes a task, and most answers are quick: only work that lasts gets a watch. A client that leaves earlier is
# noticed when the watch begins. Measured on the empty engine: 3 us a request for a task, 0.4 for this timer.
WATCH_AFTER_S = 0.25


async def while_connected(work: Awaitable[T], receive: Receive) -> T:
    """The result of `work`, which runs in the caller's task. If the client goes, `work` is cancelled: ClientLeft."""
    watch = _Watch(receive)
    try:
        return await work
    except asyncio.CancelledError:
        if not watch.saw_departure:
            raise
        raise ClientLeft from None
    finally:
        watch.end()


class _Watch:
    """Cancels the task it was made in when the client leaves. Ends before that task does anything else."""

    def __init__(self, receive: Receive) -> None:
        self.saw_departure = False
        self._receive = receive
        self._worker = _current_task()
        self._watcher: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(WATCH_AFTER_S, self._begin)

    def end(self) -> None:
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        if self.saw_departure:
            self._worker.uncancel()

    def _begin(self) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self._see())

    async def _see(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.saw_departure = True
        self._worker.cancel()


def _current_task() -> asyncio.Task[object]:
    task = asyncio.current_task()
    assert task is not None, "a handler runs in a task"
    return task
