"""Bounds the bytes of responses that wait in this process until clients read them.

answer.py reserves room before it renders a large response and releases it once the connection has the bytes. run.py
provides the connections, whose buffers are counted, and once per second aborts the slowest ones if the room is full.
On the event loop. Under another ASGI server there is always room.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Protocol

from vectord.errors import Overloaded

MAX_BODIES = 6  # request body limits that all responses may hold together: 192 MiB by default
MIN_ROOM_BYTES = 192 * 2**20
MIN_BYTES_PER_S = 16_384 / 10  # that a client must read
WRITE_STALL_S = 60.0  # maximum lag at that rate
PRESSED_STALL_S = 10.0  # maximum lag while other responses need the room
WAIT_S = 2.0  # how long a response waits for room: clients that read free some within milliseconds
MAX_WAITING = 32  # responses, held as arrays
CHECK_S = 0.02
RETRY_S = 5.0

NO_ROOM = "Too many large responses wait for clients that do not read them; try again."


class ReadPace:
    """How far one client lags, compared with the minimum rate of reading.

    Every byte read extends the time allowed, so the lag of a client that reads single bytes still grows, and that of
    one that reads in large pieces, as kernels deliver them, does not.
    """

    __slots__ = ("_paid_until_s", "_unread_bytes")

    def __init__(self, now_s: float) -> None:
        self._unread_bytes = 0
        self._paid_until_s = now_s

    def update(self, unread_bytes: int, now_s: float) -> None:
        """Called about every second. unread_bytes: in this process and in the kernel."""
        read_bytes = max(0, self._unread_bytes - unread_bytes)
        continues = unread_bytes > 0 and self._unread_bytes > 0
        self._paid_until_s = min(now_s, self._paid_until_s + read_bytes / MIN_BYTES_PER_S) if continues else now_s
        self._unread_bytes = unread_bytes

    def lag_s(self, now_s: float) -> float:
        return now_s - self._paid_until_s


class Connection(Protocol):
    pace: ReadPace

    @property
    def held_bytes(self) -> int:
        """Unread bytes of a response, in the process and in the kernel; 0 once the kernel has all of it. A response is
        one object, which stays in memory until its last byte is sent."""
        ...

    def abort(self) -> None: ...


class WriteBackpressure:
    def __init__(self, body_limit_bytes: int) -> None:
        self.room_bytes = max(MAX_BODIES * body_limit_bytes, MIN_ROOM_BYTES)
        self._held_bytes = 0  # at the last count
        self._sent_bytes = 0  # of large responses since the last count
        self._reserved_bytes = 0  # for responses being rendered, compressed and sent
        self._connections: Callable[[], Collection[Connection]] | None = None
        self._waiting = 0
        self._waiting_bytes = 0

    def watch(self, connections: Callable[[], Collection[Connection]]) -> None:
        """Count the responses of these connections from now on."""
        self._connections = connections

    def count(self) -> int:
        """The bytes held now."""
        self._sent_bytes = 0
        self._held_bytes = sum(connection.held_bytes for connection in self._connections()) if self._connections else 0
        return self._held_bytes

    @asynccontextmanager
    async def room(self, n_bytes: int) -> AsyncIterator[None]:
        """Reserves room for a response of about `n_bytes` while it is rendered. Raises Overloaded if there is none."""
        if not self._has_room() and not await self._wait_for_room(n_bytes):
            raise Overloaded(NO_ROOM, retry_after_s=RETRY_S)
        self.hold(n_bytes)
        try:
            yield
        finally:
            self._reserved_bytes -= n_bytes

    def hold(self, n_bytes: int) -> None:
        """Reserve room for a rendered response; `give_back` must follow."""
        self._reserved_bytes += n_bytes

    def give_back(self, n_bytes: int) -> None:
        """The connection has the response, or it will not be sent. uvloop counts it in the loop's next iteration."""
        asyncio.get_running_loop().call_soon(self._given_back, n_bytes)

    def _given_back(self, n_bytes: int) -> None:
        self._reserved_bytes -= n_bytes
        self._sent_bytes += n_bytes

    async def _wait_for_room(self, n_bytes: int) -> bool:
        max_bytes = self.room_bytes // 2  # of text; the arrays that it is rendered from are a third of that
        if self._waiting >= MAX_WAITING or (self._waiting and self._waiting_bytes + n_bytes > max_bytes):
            return False
        self._waiting += 1
        self._waiting_bytes += n_bytes
        try:
            async with asyncio.timeout(WAIT_S):
                while not self._has_room():  # noqa: ASYNC110 - no event announces that a buffer was read
                    await asyncio.sleep(CHECK_S)
            return True
        except TimeoutError:
            return False
        finally:
            self._waiting -= 1
            self._waiting_bytes -= n_bytes

    def make_room(self, now_s: float) -> None:
        """If the room is full, abort the clients that lag most, until half of it is free or only readers are left."""
        if self.count() < self.room_bytes or self._connections is None:
            return
        slow = [each for each in self._connections() if each.held_bytes and each.pace.lag_s(now_s) > PRESSED_STALL_S]
        for connection in sorted(slow, key=lambda each: each.pace.lag_s(now_s), reverse=True):
            if self._held_bytes <= self.room_bytes // 2:
                return
            self._held_bytes -= connection.held_bytes
            connection.abort()

    def _has_room(self) -> bool:
        free_bytes = self.room_bytes - self._reserved_bytes
        # Counting 1,000 connections costs as much as two small responses, so it happens only if it may matter.
        return self._held_bytes + self._sent_bytes < free_bytes or self.count() < free_bytes
