"""Bounds the bytes of large responses, from their rendering until their clients have read them, and the time for that.

answer.py reserves room before it renders a large response. port.py aborts the clients that read slowest if the room is
full. On the event loop.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from vectord.budget import Budget
from vectord.errors import Overloaded

MAX_BODIES = 6  # request body limits that all responses may hold together: 192 MiB by default
MIN_ROOM_BYTES = 192 * 2**20
MIN_BYTES_PER_S = 16_384 / 10  # that a client must read
WRITE_STALL_S = 60.0  # maximum lag at that rate
PRESSED_STALL_S = 10.0  # maximum lag while other responses need the room
WAIT_S = 2.0  # how long a response waits for room: clients that read free some within milliseconds
RETRY_S = 5.0

NO_ROOM = "Too many large responses wait for clients that do not read them; try again."


class WriteBackpressure:
    """budget: bytes of the responses that are rendered or unread."""

    def __init__(self, body_limit_bytes: int) -> None:
        self.budget = Budget(max(MAX_BODIES * body_limit_bytes, MIN_ROOM_BYTES), overshoots=True)
        self._waiting = Budget(self.budget.limit // 2)  # of text; the arrays that it is rendered from have a third
        self._lacked = False

    @asynccontextmanager
    async def room(self, n_bytes: int) -> AsyncIterator[None]:
        """Reserves room for a response of about `n_bytes` while it is rendered. Raises Overloaded if there is none."""
        if not self.budget.hold(n_bytes):
            await self._wait(n_bytes)
        try:
            yield
        finally:
            self.budget.release(n_bytes)

    def take_shortage(self) -> bool:
        """Whether responses exceed the room, or one has lacked it since the last call."""
        lacked, self._lacked = self._lacked or self.budget.held > self.budget.limit, False
        return lacked

    async def _wait(self, n_bytes: int) -> None:
        self._lacked = True
        if not self._waiting.hold(n_bytes):
            raise Overloaded(NO_ROOM, retry_after_s=RETRY_S)
        try:
            async with asyncio.timeout(WAIT_S):
                await self.budget.wait(n_bytes)
        except TimeoutError:
            raise Overloaded(NO_ROOM, retry_after_s=RETRY_S) from None
        finally:
            self._waiting.release(n_bytes)


class ReadPace:
    """How far one client lags, compared with the minimum rate of reading.

    Every byte read extends the time allowed, so the lag of a client that reads single bytes still grows, and that of
    one that reads in large pieces, as kernels deliver them, does not.
    """

    def __init__(self, now_s: float) -> None:
        self.unread_bytes = 0
        self._paid_until_s = now_s

    def update(self, unread_bytes: int, now_s: float) -> None:
        """Called about every second. unread_bytes: in this process and in the kernel."""
        read_bytes = max(0, self.unread_bytes - unread_bytes)
        continues = unread_bytes > 0 and self.unread_bytes > 0
        self._paid_until_s = min(now_s, self._paid_until_s + read_bytes / MIN_BYTES_PER_S) if continues else now_s
        self.unread_bytes = unread_bytes

    def lag_s(self, now_s: float) -> float:
        return now_s - self._paid_until_s


def unread_bytes(transport: asyncio.WriteTransport) -> int:
    """Bytes of a response in this process, and in the kernel where it counts them; 0 once the kernel has all of it."""
    n_bytes = transport.get_write_buffer_size()
    if n_bytes:
        try:
            import fcntl  # noqa: PLC0415 - not on Windows
            import termios  # noqa: PLC0415

            count = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
        except (ImportError, OSError):  # OSError: a closed socket
            return n_bytes
        n_bytes += int(struct.unpack("i", count)[0])
    return n_bytes
