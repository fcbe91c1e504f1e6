"""Requests that arrive at random, whether or not earlier ones were answered: what users do. For overload.py.

As http_load.py this leaves the processor to the server: prepared bytes, no task, timer or future a request. Of an
answer its status line and length are read. On the load generator's event loop.
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

TICK_S = 0.005  # what is due within one goes out together: waking for each request would cost as much as sending it
SWEEP_S = 0.5  # between two looks for who has waited too long
LATE_S = 0.05  # a request that is sent so much later than it was due would not be of this load


class Connection(asyncio.Protocol):
    """One keep-alive connection with at most one request under way."""

    def __init__(self, answered: Callable[[Connection, Request, Answer], None]) -> None:
        """answered: told of each answer, status 0 where none came; may send the next request."""
        self._answered = answered
        self._transport: asyncio.WriteTransport | None = None
        self._received = b""
        self._missing_bytes = -1  # of the answer; -1 while its head has not been read
        self._status = 0
        self._request: Request | None = None
        self.sent_s = 0.0

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, request: Request) -> None:
        self._request = request
        self.sent_s = time.perf_counter()
        if self._transport is not None:  # else as soon as it is open
            self._transport.write(request.payload)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._end(0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is one by its methods only
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
    """Opens it, or ends what it is to send with status 0."""
    try:
        await asyncio.get_running_loop().create_connection(lambda: connection, HOST, port)
    except OSError:
        connection.abort()


class Arrivals:
    """Sends `per_s` requests a second for a while; each takes a connection that is free, or a new one."""

    def __init__(
        self,
        port: int,
        requests: Sequence[Request],
        per_s: float,
        patience_s: float,
        answered: Callable[[Request, Answer], None],
    ) -> None:
        """patience_s: what is not answered so long after the last request has status 0."""
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
        self.late = 0  # sent later than they were due, by LATE_S

    async def send(self, seconds: float) -> None:
        self._due_s = time.perf_counter()
        self._until_s = self._due_s + seconds
        self._send_due()
        await self._over.wait()

    async def end(self) -> None:
        """Returns when all that was sent is answered, or given up."""
        while self._under_way:
            await asyncio.sleep(SWEEP_S)
            self._give_up()
        for connection in self._free:
            connection.abort()

    def _send_due(self) -> None:
        """All that is due by now, and a timer for what comes next."""
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
        """On those who have waited for longer than anybody would."""
        least_s = time.perf_counter() - self._patience_s
        for connection in [each for each in self._under_way if each.sent_s < least_s]:
            connection.abort()


def _content_length(head: bytes) -> int:
    at = head.lower().find(b"\r\ncontent-length:")
    return int(head[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
