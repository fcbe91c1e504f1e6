"""Places for messages on their way: grpc holds each until it is whole, and only then says how large it is.

services.py reads every message here, on the event loop. What is not read yet is held back by HTTP/2's own flow control,
64 kB of a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from vectord.errors import UploadTooSlow


class Receipts:
    """So many messages at once, first come, first served. Who has been at it for `grace_s` makes way for who waits."""

    def __init__(self, places: int, grace_s: float, longest_s: float | None = None) -> None:
        """longest_s: how long a message may take though nobody waits; None: for ever, as streams may be silent."""
        self._grace_s = grace_s
        self._longest_s = longest_s
        self._places = asyncio.Semaphore(places)
        self._waiting = 0
        self._reading: dict[asyncio.Timeout, float] = {}  # since when; the first is the oldest
        self._hurry: asyncio.TimerHandle | None = None

    async def read(self, messages: AsyncIterator[bytes]) -> bytes | None:
        """The next message; None: there are no more. Raises UploadTooSlow."""
        await self._enter()
        try:
            async with asyncio.timeout(self._longest_s) as scope:
                self._reading[scope] = asyncio.get_running_loop().time()
                return await anext(messages, None)
        except TimeoutError:
            raise UploadTooSlow("The message took too long to come.") from None
        finally:
            self._reading.pop(scope, None)
            self._places.release()

    async def each(self, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        while (message := await self.read(messages)) is not None:
            yield message

    async def _enter(self) -> None:
        if not self._places.locked():
            await self._places.acquire()
            return
        self._waiting += 1
        self._watch()
        try:
            await self._places.acquire()
        finally:
            self._waiting -= 1

    def _watch(self) -> None:
        """Until the oldest has had its time."""
        if self._hurry is None and self._reading:
            oldest_s = next(iter(self._reading.values()))
            self._hurry = asyncio.get_running_loop().call_at(oldest_s + self._grace_s, self._make_way)

    def _make_way(self) -> None:
        self._hurry = None
        now_s = asyncio.get_running_loop().time()
        late = [scope for scope, since_s in self._reading.items() if now_s - since_s >= self._grace_s]
        for scope in late[: self._waiting]:
            del self._reading[scope]
            scope.reschedule(now_s)
        if self._waiting:
            self._watch()
