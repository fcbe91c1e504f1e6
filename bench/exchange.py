"""One request and its whole response over a keep-alive connection, with any status: for soak.py and overload.py.

http_load.py only counts responses with status 200; this file returns refusals and bodies too. Runs on the load
generator's event loop.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import cast

from bench.http_load import HOST


@dataclass(frozen=True, slots=True)
class Answer:
    status: int  # 0: no response
    body: bytes
    latency_s: float


class Connection(asyncio.Protocol):
    """Sends one request at a time, and reconnects after the server has closed the connection."""

    def __init__(self, port: int, patience_s: float, address: str | None = None) -> None:
        """address: the client's own, by which a server without keys identifies it."""
        self._local = None if address is None else (address, 0)
        self._port = port
        self._patience_s = patience_s
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._answered: asyncio.Future[tuple[int, bytes]] | None = None

    async def ask(self, payload: bytes) -> Answer:
        """The response; status 0 after a timeout or a broken connection."""
        began_s = time.perf_counter()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._patience_s):
                if self._transport is None or self._transport.is_closing():
                    await loop.create_connection(lambda: self, HOST, self._port, local_addr=self._local)
                self._answered = loop.create_future()
                assert self._transport is not None
                self._transport.write(payload)
                status, body = await self._answered
        except (OSError, TimeoutError):
            self.close()
            return Answer(0, b"", time.perf_counter() - began_s)
        return Answer(status, body, time.perf_counter() - began_s)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it
        self._received.clear()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head_end = self._received.find(b"\r\n\r\n")
        if head_end < 0:
            return
        head = bytes(self._received[:head_end]).lower()
        at = head.find(b"\r\ncontent-length:")
        length = int(head[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        end = head_end + 4 + length
        if len(self._received) < end:
            return
        body = bytes(self._received[head_end + 4 : end])
        del self._received[:end]
        if self._answered is not None and not self._answered.done():
            self._answered.set_result((int(head[9:12]), body))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(ConnectionResetError("closed before the answer"))
