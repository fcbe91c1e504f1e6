"""uvicorn's HTTP/1.1 protocol with the bounds it lacks. One object a connection, on the event loop; made by run.py.

What is bounded: request line and headers together, the number of headers, requests sent ahead of their answers, and
the time a client may take to send or to read; unsent.py bounds the bytes of all answers together. What is mended: a
request cut off by a half-closed connection is answered, garbage behind a request cannot land in the middle of that
request's answer, and a request that offers an upgrade keeps its body.

It leans on attributes that uvicorn does not promise (cycle, pipeline, flow); tests/server/test_http_protocol.py
drives each of them over a real socket.
"""

from __future__ import annotations

import re
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from vectord.server.http.hardening.kernel_buffer import kernel_bytes
from vectord.server.http.hardening.unsent import WRITE_STALL_S, Pace

MAX_HEADERS = 256
MAX_PIPELINED = 16  # requests that may wait behind the one being answered; no common client sends any
READ_STALL_S = 30.0  # for a whole head, and between two parts of a body
SILENCE_S = 75.0  # before the first byte of the first request

_upgrade = re.compile(rb"\r\nupgrade:", re.IGNORECASE)


class HttpProtocol(HttpToolsProtocol):
    def __init__(self, *args: Any, header_limit_bytes: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._header_limit_bytes = header_limit_bytes
        self._in_head = False
        self._head_bytes = 0  # of the head being read, a lower bound
        self._trailer_bytes = 0  # of the fields behind a chunked body
        self._heard_s = self.loop.time()  # when the head began, or the last bytes of a body came
        self.pace = Pace(self._heard_s)
        self._ends = False  # nothing is read any more; closes when the answer under way is complete

    # --- reading ----------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._ends:
            return
        began_in_head = self._in_head
        if not began_in_head:
            self._heard_s = self.loop.time()
        if not self._is_reading_body():
            data = _without_upgrade(data)
        super().data_received(data)
        # The chunk in which a head begins is not counted: some of it may belong to the request before. A head that
        # is complete is measured exactly in on_headers_complete.
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
        # A trailer. Nobody reads those (RFC 9110, 6.5.1), and uvicorn would put them among the request's headers.
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
        """The client has closed its side. Inside a body of known length that is said to it, not only logged."""
        cycle = self.cycle
        if self._ends or not self._is_reading_body() or any(name == b"transfer-encoding" for name, _ in self.headers):
            return False
        self._ends = True
        cycle.keep_alive = False
        cycle.more_body = False  # the handler compares what came with Content-Length
        cycle.message_event.set()
        return True

    # --- refusing ---------------------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg.encode("ascii"))

    def _refuse(self, status: int, message: bytes) -> None:
        """Answer what cannot become a request, unless that would land in the middle of another answer."""
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

    # --- watching over time -----------------------------------------------------------------------------------

    def drop_if_stalled(self, now_s: float) -> None:
        """Called by run.py every second: let go of a client that neither sends what it began nor takes its answer."""
        self.pace.note(self.held_bytes, now_s)  # the kernel's too: it passes megabytes at once
        if self.pace.behind_s(now_s) > WRITE_STALL_S:
            self.abort()
        elif now_s - self._heard_s > self._patience_s():
            self.transport.close()

    def close_if_idle(self) -> None:
        """Called by run.py while it drains."""
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    @property
    def held_bytes(self) -> int:
        """See Connection in unsent.py. Of a client that does not read, some more are in its own buffer."""
        held_bytes = self.transport.get_write_buffer_size()
        return held_bytes + kernel_bytes(self.transport) if held_bytes else 0

    def abort(self) -> None:
        self.transport.abort()

    def _patience_s(self) -> float:
        if self._in_head or self._is_reading_body():
            return READ_STALL_S
        return SILENCE_S if self.cycle is None else float("inf")  # else uvicorn's keep-alive timer watches

    def _is_reading_body(self) -> bool:
        return self.cycle is not None and self.cycle.more_body and not self.cycle.response_complete

    def _is_answering(self) -> bool:
        """Whether a complete request awaits its answer, or has part of it."""
        if self.pipeline:
            return True
        return self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete


def _without_upgrade(data: bytes) -> bytes:
    """`data`, which holds headers, with the one that offers an upgrade renamed.

    Java's HTTP client offers h2c with its first request and is content to go on without. But httptools 0.9 takes such
    a request for one without a body, and its body for the next request.
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
