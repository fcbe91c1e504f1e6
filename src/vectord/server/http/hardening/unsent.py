"""Bytes of answers that wait in this process until their clients take them, and who loses an answer to make room.

rendering.py takes room before it makes a large answer of a result, and handler.py gives it back once that is written;
run.py shows the connections, whose buffers are counted, and once a second has the slowest cut off. On the event loop.
Under another ASGI server there is always room.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Protocol

from vectord.errors import Overloaded

BODIES_AT_ONCE = 6  # limits' worth of request bodies that all answers together may have: 192 MiB by default
LEAST_ROOM_BYTES = 192 * 2**20
EMPTIED_BYTES = 64 * 2**20  # fewer of them than there were are worth giving back to the system
LEAST_BYTES_PER_S = 16_384 / 10  # that a client has to take of its answer
WRITE_STALL_S = 60.0  # how far it may fall behind that
PRESSED_STALL_S = 10.0  # and how far where others need the room
WAIT_S = 2.0  # for room, before an answer is refused: clients that read leave some in milliseconds
WAITING_AT_ONCE = 32  # answers, which are held as arrays until then
CHECK_S = 0.02
RETRY_S = 5.0


class Pace:
    """How far one client is behind in taking what was sent to it.

    Each byte it takes makes up for the time that it may take, so that a client that takes one now and then falls behind
    all the same, and one that takes them in lumps, as kernels pass them on, does not.
    """

    __slots__ = ("_even_s", "_unsent_bytes")

    def __init__(self, now_s: float) -> None:
        self._unsent_bytes = 0
        self._even_s = now_s  # until when it has taken what it should

    def note(self, unsent_bytes: int, now_s: float) -> None:
        """To be told of every second or so. unsent_bytes: in the process and in the kernel."""
        taken_bytes = max(0, self._unsent_bytes - unsent_bytes)
        goes_on = unsent_bytes > 0 and self._unsent_bytes > 0
        self._even_s = min(now_s, self._even_s + taken_bytes / LEAST_BYTES_PER_S) if goes_on else now_s
        self._unsent_bytes = unsent_bytes

    def behind_s(self, now_s: float) -> float:
        return now_s - self._even_s


class Connection(Protocol):
    """What run.py shows of each."""

    pace: Pace

    @property
    def held_bytes(self) -> int:
        """Of an answer that is not all with the kernel: what is unsent, and what the kernel has of it. An answer is one
        object, which stays whole until its last byte is gone."""
        ...

    def abort(self) -> None: ...


class Unsent:
    def __init__(self, body_limit_bytes: int) -> None:
        self.room_bytes = max(BODIES_AT_ONCE * body_limit_bytes, LEAST_ROOM_BYTES)
        self._held_bytes = 0  # at the last count
        self._sent_bytes = 0  # of large answers since then, taken or not
        self._reserved_bytes = 0  # for those being rendered, compressed and written
        self._most_bytes = 0  # since `emptied` was last true
        self._connections: Callable[[], Collection[Connection]] | None = None
        self._waiting = 0
        self._waiting_bytes = 0

    def watch(self, connections: Callable[[], Collection[Connection]]) -> None:
        """From now on the answers of these are counted."""
        self._connections = connections

    def count(self) -> int:
        """What is held now."""
        self._sent_bytes = 0
        self._held_bytes = sum(connection.held_bytes for connection in self._connections()) if self._connections else 0
        return self._held_bytes

    @asynccontextmanager
    async def room(self, n_bytes: int) -> AsyncIterator[None]:
        """Room for an answer of so many bytes, about, while it is rendered. Raises Overloaded if there is none."""
        if not self._has_room() and not await self._room_comes(n_bytes):
            message = "Too many large answers wait for clients that do not read them; try again."
            raise Overloaded(message, retry_after_s=RETRY_S)
        self.hold(n_bytes)
        try:
            yield
        finally:
            self._reserved_bytes -= n_bytes

    def hold(self, n_bytes: int) -> None:
        """Of an answer that was rendered in its room and is to be compressed and written; `give_back` must follow."""
        self._reserved_bytes += n_bytes

    def give_back(self, n_bytes: int) -> None:
        """They are written, and a connection's, or will not be. uvloop shows them there in the loop's next turn."""
        asyncio.get_running_loop().call_soon(self._given_back, n_bytes)

    def _given_back(self, n_bytes: int) -> None:
        self._reserved_bytes -= n_bytes
        self._sent_bytes += n_bytes

    def emptied(self) -> bool:
        """Whether much less is held than there was: asked once a second, after `make_room`."""
        held_bytes = self._held_bytes + self._reserved_bytes
        self._most_bytes = max(self._most_bytes, held_bytes)
        if self._most_bytes - held_bytes < EMPTIED_BYTES:
            return False
        self._most_bytes = held_bytes
        return True

    async def _room_comes(self, n_bytes: int) -> bool:
        most_bytes = self.room_bytes // 2  # of text: the arrays that it will be made of are a third of that
        if self._waiting >= WAITING_AT_ONCE or (self._waiting and self._waiting_bytes + n_bytes > most_bytes):
            return False
        self._waiting += 1
        self._waiting_bytes += n_bytes
        try:
            async with asyncio.timeout(WAIT_S):
                while not self._has_room():  # noqa: ASYNC110 - buffers empty without telling anybody
                    await asyncio.sleep(CHECK_S)
            return True
        except TimeoutError:
            return False
        finally:
            self._waiting -= 1
            self._waiting_bytes -= n_bytes

    def make_room(self, now_s: float) -> None:
        """Cut off those who are furthest behind, until half of the room is free or only those are left who read."""
        if self.count() < self.room_bytes or self._connections is None:
            return
        slow = [each for each in self._connections() if each.held_bytes and each.pace.behind_s(now_s) > PRESSED_STALL_S]
        for connection in sorted(slow, key=lambda each: each.pace.behind_s(now_s), reverse=True):
            if self._held_bytes <= self.room_bytes // 2:
                return
            self._held_bytes -= connection.held_bytes
            connection.abort()

    def _has_room(self) -> bool:
        free_bytes = self.room_bytes - self._reserved_bytes
        # Counting is for when it may matter: 1,000 connections cost as much as two small answers.
        return self._held_bytes + self._sent_bytes < free_bytes or self.count() < free_bytes
