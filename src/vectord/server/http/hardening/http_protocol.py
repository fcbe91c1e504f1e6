"""uvicorn's HTTP/1.1 protocol with the bounds that it lacks. One object per connection, on the event loop.

Bounded: the bytes of request line and headers, the number of headers, pipelined requests, and the time to send a
request or to read a response; write_backpressure.py bounds the bytes of all responses together. Corrected: a request
that a half-closed connection cuts off is answered, invalid bytes after a request cannot corrupt its response, and a
request that offers an upgrade keeps its body.

Depends on attributes that uvicorn does not document (cycle, pipeline, flow); tests/server/http/hardening drives each of
them over a real socket.
"""

from __future__ import annotations

import asyncio
import re
import struct
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from vectord.server.http.hardening.write_backpressure import WRITE_STALL_S, ReadPace

MAX_HEADERS = 256
MAX_PIPELINED = 16  # requests waiting on a connection; common clients send none
READ_STALL_S = 30.0  # for a complete head, and between two parts of a body
FIRST_REQUEST_S = 75.0  # before the first byte of the first request

_upgrade = re.compile(rb"\r\nupgrade:", re.IGNORECASE)


class HttpProtocol(HttpToolsProtocol):
    def __init__(self, *args: Any, header_limit_bytes: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._header_limit_bytes = header_limit_bytes
        self._in_head = False
        self._head_bytes = 0  # of the head being read, a lower bound
        self._trailer_bytes = 0  # after a chunked body
        self._last_read_s = self.loop.time()  # when the head began, or the last part of a body arrived
        self.pace = ReadPace(self._last_read_s)
        self._ends = False  # ignores input; closes when the current response is complete

    # --- reading ----------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._ends:
            return
        began_in_head = self._in_head
        if not began_in_head:
            self._last_read_s = self.loop.time()
        if not self._is_reading_body():
            data = _without_upgrade(data)
        super().data_received(data)
        # The chunk in which a head begins is not counted, since it may also contain the end of the previous request.
        # on_headers_complete measures complete heads exactly.
        if self._in_head and began_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self._header_limit_bytes:
                self._refuse(431, b"Request Header Fields Too Large")

    def on_message_begin(self) -> None:
        self._in_head = True
        self._head_bytes = self._trailer_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            super().on_header(name, value)
            return
        # A trailer. Servers may ignore it (RFC 9110, 6.5.1), and uvicorn would add it to the request's headers.
        self._trailer_bytes += len(name) + len(value) + 4
        if self._trailer_bytes > self._header_limit_bytes:
            self._ends = True
            self.transport.close()

    def on_headers_complete(self) -> None:
        self._in_head = False
        if len(self.pipeline) >= MAX_PIPELINED:
            self._end_after_answer()
            return
        app = self.app
        if self._head_is_too_large():
            self.app = _head_too_large
        super().on_headers_complete()
        self.app = app

    def _head_is_too_large(self) -> bool:
        head_bytes = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        return head_bytes > self._header_limit_bytes or len(self.headers) > MAX_HEADERS

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio's meaning: True keeps our side open
        """The client closed its side. If a body of known length is incomplete, the request is still answered."""
        cycle = self.cycle
        if self._ends or not self._is_reading_body() or any(name == b"transfer-encoding" for name, _ in self.headers):
            return False
        self._ends = True
        cycle.keep_alive = False
        cycle.more_body = False  # body.py compares the received bytes with Content-Length
        cycle.message_event.set()
        return True

    # --- refusing ---------------------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg.encode("ascii"))

    def _refuse(self, status: int, message: bytes) -> None:
        """Answer invalid input, unless that would corrupt another response."""
        if self._is_answering():
            self._end_after_answer()
        elif self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.close()
        else:
            head = f"HTTP/1.1 {status} \r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
            self.transport.write(head.encode() + b"content-length: %d\r\n\r\n%b" % (len(message), message))
            self._ends = True
            self.transport.close()

    def _end_after_answer(self) -> None:
        self._ends = True
        self.flow.pause_reading()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._ends and not self.transport.is_closing():
            self.transport.close()

    # --- stalled clients --------------------------------------------------------------------------------------

    def drop_if_stalled(self, now_s: float) -> None:
        """Called every second: close the connection of a client that stopped sending or reading."""
        self.pace.update(self.held_bytes, now_s)
        if self.pace.lag_s(now_s) > WRITE_STALL_S:
            self.abort()
        elif now_s - self._last_read_s > self._read_timeout_s():
            self.transport.close()

    def close_if_idle(self) -> None:
        """Called while the server drains."""
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    @property
    def held_bytes(self) -> int:
        """See Connection in write_backpressure.py."""
        held_bytes = self.transport.get_write_buffer_size()
        return held_bytes + kernel_bytes(self.transport) if held_bytes else 0

    def abort(self) -> None:
        self.transport.abort()

    def _read_timeout_s(self) -> float:
        if self._in_head or self._is_reading_body():
            return READ_STALL_S
        return FIRST_REQUEST_S if self.cycle is None else float("inf")  # then uvicorn's keep-alive timer applies

    def _is_reading_body(self) -> bool:
        return self.cycle is not None and self.cycle.more_body and not self.cycle.response_complete

    def _is_answering(self) -> bool:
        """Whether a complete request has no response yet, or part of one."""
        if self.pipeline:
            return True
        return self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete


def _without_upgrade(data: bytes) -> bytes:
    """`data` with a header that offers an upgrade renamed.

    Java's HTTP client offers h2c with its first request and works without it. httptools 0.9 assumes that such a request
    has no body, and would read its body as the next request.
    """
    head, end, rest = data.partition(b"\r\n\r\n")
    if b"pgrade:" not in head.lower():
        return data
    return _upgrade.sub(b"\r\nignored:", head) + end + rest


async def _head_too_large(scope: Any, receive: Any, send: Any) -> None:
    message = b"Request line and headers are too large."
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", b"%d" % len(message)),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 431, "headers": headers})
    await send({"type": "http.response.body", "body": message})


def kernel_bytes(transport: asyncio.BaseTransport) -> int:
    """Bytes in the kernel's send buffer that the client has not acknowledged; 0 on systems without that count."""
    try:
        import fcntl  # noqa: PLC0415 - not on Windows
        import termios  # noqa: PLC0415
    except ImportError:
        return 0
    try:
        count = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
    except (OSError, AttributeError):  # a closed socket, or a transport without one
        return 0
    return int(struct.unpack("i", count)[0])
