"""An open load for overload.py: requests arrive at random, independently of responses, as users send them.

Like http_load.py it leaves the CPU to the server: prepared bytes, and no task, timer or future for a request. It reads
a response's status line and length. Runs on the load generator's event loop.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

from bench.exchange import Answer
from bench.http_load import HOST, Request

TICK_S = 0.005  # requests due within one tick go out together: a wake-up costs as much as a request
SWEEP_S = 0.5  # between two searches for requests that waited too long
LATE_S = 0.05  # a request that would go out later than this is dropped


class Connection(asyncio.Protocol):
    """One keep-alive connection with at most one request in flight."""

    def __init__(self, answered: Callable[[Connection, Request, Answer], None]) -> None:
        """answered: called with each response, status 0 without one; may send the next request."""
        self._answered = answered
        self._transport: asyncio.WriteTransport | None = None
        self._received = b""
        self._missing_bytes = -1  # of the response; -1 before its head was read
        self._status = 0
        self._request: Request | None = None
        self.sent_s = 0.0

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, request: Request) -> None:
        self._request = request
        self.sent_s = time.perf_counter()
        if self._transport is not None:  # else when it opens
            self._transport.write(request.payload)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._end(0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's does not inherit from it
        if self._request is not None:
            self._transport.write(self._request.payload)

    def data_received(self, data: bytes) -> None:
        if self._missing_bytes < 0:
            data = self._received + data
            head_end = data.find(b"\r\n\r\n")
            if head_end < 0:
                self._received = data
                return
            self._received = b""
            self._status = int(data[9:12])
            self._missing_bytes = head_end + 4 + _content_length(data[:head_end])
        self._missing_bytes -= len(data)
        if self._missing_bytes <= 0:
            self._missing_bytes = -1
            self._end(self._status)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._end(0)

    def _end(self, status: int) -> None:
        request, self._request = self._request, None
        if request is not None:
            self._answered(self, request, Answer(status, b"", time.perf_counter() - self.sent_s))


async def connect(connection: Connection, port: int) -> None:
    """Open the connection; without one, its request ends with status 0."""
    try:
        await asyncio.get_running_loop().create_connection(lambda: connection, HOST, port)
    except OSError:
        connection.abort()


class Arrivals:
    """Sends `per_s` requests per second; each one uses a free connection or a new one."""

    def __init__(
        self,
        port: int,
        requests: Sequence[Request],
        per_s: float,
        patience_s: float,
        answered: Callable[[Request, Answer], None],
    ) -> None:
        """patience_s: requests still unanswered this long after the last one get status 0."""
        self._port = port
        self._requests = requests
        self._per_s = per_s
        self._patience_s = patience_s
        self._tell = answered
        self._chance = random.Random(0)
        self._loop = asyncio.get_running_loop()
        self._free: deque[Connection] = deque()
        self._under_way: dict[Connection, None] = {}
        self._opening: set[asyncio.Task[None]] = set()
        self._due_s = self._until_s = 0.0
        self._over = asyncio.Event()
        self.late = 0  # sent more than LATE_S late

    async def send(self, seconds: float) -> None:
        self._due_s = time.perf_counter()
        self._until_s = self._due_s + seconds
        self._send_due()
        await self._over.wait()

    async def end(self) -> None:
        """Return when every request is answered or abandoned."""
        while self._under_way:
            await asyncio.sleep(SWEEP_S)
            self._give_up()
        for connection in self._free:
            connection.abort()

    def _send_due(self) -> None:
        """Send the requests that are due, and set a timer for the next one."""
        now_s = time.perf_counter()
        while self._due_s <= min(now_s, self._until_s):
            self.late += now_s - self._due_s > LATE_S
            self._send(self._chance.choice(self._requests))
            self._due_s += self._chance.expovariate(self._per_s)
        if self._due_s < self._until_s:
            self._loop.call_later(max(TICK_S, self._due_s - now_s), self._send_due)
        else:
            self._over.set()

    def _send(self, request: Request) -> None:
        while self._free:
            connection = self._free.pop()
            if connection.is_open:
                break
        else:
            connection = Connection(self._answered)
            opening = self._loop.create_task(connect(connection, self._port))
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)
        self._under_way[connection] = None
        connection.send(request)

    def _answered(self, connection: Connection, request: Request, answer: Answer) -> None:
        del self._under_way[connection]
        if answer.status:
            self._free.append(connection)
        self._tell(request, answer)

    def _give_up(self) -> None:
        """Abandon requests that have waited too long."""
        least_s = time.perf_counter() - self._patience_s
        for connection in [each for each in self._under_way if each.sent_s < least_s]:
            connection.abort()


def _content_length(head: bytes) -> int:
    at = head.lower().find(b"\r\ncontent-length:")
    return int(head[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
