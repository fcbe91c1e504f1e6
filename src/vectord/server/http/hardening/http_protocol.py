"""HTTP/1.1 over httptools, for an ASGI app. One HttpConnection per connection, on the event loop.

The requests of a connection are answered one by one, each in a task of its own. A body is parsed as the app reads it,
and the rest of it after the response. All later input is held, unparsed, until then, so the answers do not depend on
how the input was divided into TCP segments.

Only httptools decides where heads, chunks and requests end, and which input is invalid. This module chooses the pieces
in which httptools receives the input. A piece ends where a request may end: after a blank line, or after the length
that a head announced.

Bounded: the bytes and the number of headers, per request; the unparsed input of all connections together; the framing
of chunked bodies; the work of one iteration of the event loop; the time to send a request or to read a response.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import unquote

import httptools
from starlette.types import ASGIApp

from vectord.budget import Budget
from vectord.server.http.hardening.connection_limits import OVER_LIMIT, RESERVED_S, ConnectionLimits, ConnectionSlot
from vectord.server.http.hardening.write_backpressure import WRITE_STALL_S, ReadPace, unread_bytes

MAX_HEADERS = 256
UNPARSED_BYTES = 32 * 2**20  # of all unfinished heads and early requests, beyond FREE_BYTES a connection
FREE_BYTES = 4096  # less than the other state of a connection
EAGER_BYTES = 64  # of an unfinished head show whether it is HTTP
PIECE_BYTES = 2**14  # of a chunked body
PIECES_A_TURN = 2048  # 2 ms; one segment of 256 kB may have 40,000 chunks of one byte
BUFFERED_BYTES = 2**16  # of a body that the app has not read, above which the connection is read no further
WRITE_BUFFER_BYTES = 2**16  # of responses in this process, above which `send` waits until the client has read them all
READ_STALL_S = 30.0  # for a complete head, between two parts of a body, and for the rest of an answered request
IDLE_S = 75.0  # before a request; longer than common clients, so that they close first and lose no request

BLANK_LINE = b"\r\n\r\n"
# Java's HTTP client offers h2c with its first request. httptools would expect that protocol after the head.
OFFER = re.compile(rb"\r\nupgrade:[^\r\n]*(?=\r\n)", re.IGNORECASE)
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
TOO_LARGE = b"Request line and headers are too large."
TOO_MANY_BYTES = b"The unfinished requests of all connections are too large; try again."
INVALID = b"Invalid HTTP request received."
FAILED = b"Internal Server Error"

_log = logging.getLogger("vectord.server")


@dataclass(eq=False)
class HttpService:
    """What the connections of a port share: the app, its requests in progress, and the bounds of all together."""

    app: ASGIApp
    header_limit_bytes: int
    limits: ConnectionLimits
    connections: set[HttpConnection] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    unparsed: Budget = field(default_factory=lambda: Budget(UNPARSED_BYTES))
    _turns: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def take_turn(self) -> None:
        """Return in an iteration of the event loop in which no other connection continues its long input."""
        async with self._turns:
            await asyncio.sleep(0)


class HttpConnection(asyncio.Protocol):
    """Its `receive` and `send` are ASGI's, for the current request. A client that has left is no error.

    A response needs its Content-Length, and exactly that many bytes of a body, none for HEAD; answer.py sends no other.
    """

    transport: asyncio.Transport

    def __init__(self, service: HttpService, slot: ConnectionSlot) -> None:
        self.slot = slot
        self.unparsed = b""
        self.is_answered = True  # no request waits for its response, or for the rest of it
        self._service = service
        self._loop = asyncio.get_running_loop()
        now_s = self._loop.time()
        self.pace = ReadPace(now_s)
        self._parser = httptools.HttpRequestParser(self)
        self._counted_bytes = 0  # of `unparsed`, in the budget of all connections
        # Of the input that it waits for; None: it waits for none.
        self._deadline_s: float | None = now_s + (IDLE_S if slot.error is None else RESERVED_S)
        self._news = asyncio.Event()  # input, or the end
        self._writable = asyncio.Event()
        self._writable.set()
        self._ended = False  # closed, or about to be
        # The current request, or the last one:
        self._is_current = False  # it has a task
        self._closes = False  # ends the connection
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._expects_continue = False
        self._in_body = False
        self._is_body_received = False  # by the app
        self._parts: list[bytes] = []  # of the body, which the app has not read
        self._body_left = 0  # of the length that the head announced
        self._framing_bytes = 0  # parsed since the head, or since the last data of a chunked body
        self._pieces = 0  # parsed in this turn
        self._response_head = b""  # until the first part of the response's body
        self._has_begun_response = False

    # --- the transport's calls --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it
        self.transport.set_write_buffer_limits(WRITE_BUFFER_BYTES, 0)
        self.slot.close = self.transport.abort
        self._service.connections.add(self)
        names = [transport.get_extra_info(name) for name in ("sockname", "peername")]
        self._server, self._client = (name[:2] if isinstance(name, tuple) else None for name in names)
        self._scheme = "https" if transport.get_extra_info("sslcontext") else "http"

    def data_received(self, data: bytes) -> None:
        if self._is_current:
            self._hold(self.unparsed + data)
            self._news.set()
        elif not self._ended:
            self._begin_request(self.unparsed + data)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._service.connections.discard(self)
        self._service.limits.release(self.slot)
        self._hold(b"")
        self._news.set()
        self._writable.set()
        # Cycles, which would wait for the garbage collector: it stops the event loop for 30 ms during a flood.
        self.slot.close = lambda: None
        del self._parser

    # --- the input --------------------------------------------------------------------------------------------

    def _begin_request(self, data: bytes) -> None:
        """Parse the head of the next request, which starts its task, or hold what has arrived of it."""
        data = data.lstrip(b"\r\n")  # RFC 9112, 2.2
        end = data.find(BLANK_LINE, 0, self._service.header_limit_bytes) + len(BLANK_LINE)
        if end >= len(BLANK_LINE):
            self._feed(self._parser, OFFER.sub(b"", data[:end]))
            data = data[end:]
            if not self._is_current:  # HTTP/2's preface has a blank line before its end
                self._refuse(400, INVALID)
        elif len(data) > self._service.header_limit_bytes:
            self._refuse(431, TOO_LARGE)
        elif data:  # A complete head is parsed at once: thousands of unfinished ones cost neither time nor objects.
            self._feed(httptools.HttpRequestParser(None), data[:EAGER_BYTES])
            if not self.unparsed and self.slot.error is None:
                self._deadline_s = self._loop.time() + READ_STALL_S
        self._hold(data)

    async def _read_body(self, deadline_s: float | None = None) -> None:
        """Return with a part of the body, at its end, or at the end of the connection.

        deadline_s: for the next input; None: READ_STALL_S from now.
        """
        while self._in_body and not self._parts and not self._ended:
            if self._pieces >= PIECES_A_TURN:
                await self._service.take_turn()
            self._parse_body()
            if self._pieces == 0 and not self._ended:
                self._deadline_s = deadline_s or self._loop.time() + READ_STALL_S
                self.transport.resume_reading()
                self._news.clear()
                try:
                    await self._news.wait()
                finally:
                    self._deadline_s = None

    def _parse_body(self) -> None:
        """Parse what has arrived of the body, at most PIECES_A_TURN of it."""
        data, start, self._pieces = self.unparsed, 0, 0
        while self._in_body and not self._ended and self._pieces < PIECES_A_TURN:
            end = self._end_of_piece(data, start)
            if end == start:
                break
            self._framing_bytes += end - start
            self._feed(self._parser, memoryview(data)[start:end])
            start = end
        self._hold(data[start:])

    def _end_of_piece(self, data: bytes, start: int) -> int:
        """Where the next piece of the body ends; `start` if more must arrive first, or if the framing is too large."""
        if self._body_left:
            return min(len(data), start + self._body_left)
        limit = start + self._service.header_limit_bytes - self._framing_bytes
        stop = min(len(data), limit, start + PIECE_BYTES)
        found = data.find(BLANK_LINE, start, stop)
        if found >= 0:
            return found + len(BLANK_LINE)
        if limit < start + len(BLANK_LINE):
            self._refuse(431, TOO_LARGE)
            return start
        # Without bytes in which a blank line may begin that the next segment completes.
        last = data[max(start, stop - 3) : stop]
        return stop - len(last) + len(last.rstrip(b"\r\n"))

    def _feed(self, parser: httptools.HttpRequestParser, piece: memoryview | bytes) -> None:
        self._pieces += 1
        try:
            parser.feed_data(piece)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if len(self._headers) > MAX_HEADERS:
                self._refuse(431, TOO_LARGE)
            else:
                self._refuse(400, INVALID)

    def _hold(self, data: bytes) -> None:
        """Keep input for later, if there is room. Read no further while it must wait for the app."""
        self.unparsed = b"" if self._ended or (self._closes and not self._in_body) else data
        counted_bytes = 0 if self._in_body else max(0, len(self.unparsed) - FREE_BYTES)
        if counted_bytes != self._counted_bytes:
            self._service.unparsed.release(self._counted_bytes)
            self._counted_bytes = counted_bytes
            if not self._service.unparsed.hold(counted_bytes):
                self._counted_bytes, self.unparsed, self._closes = 0, b"", True
                if not self._is_current:
                    self._refuse(503, TOO_MANY_BYTES)
        if self._is_current and len(self.unparsed) > (BUFFERED_BYTES if self._in_body else 0):
            self.transport.pause_reading()

    # --- the parser's calls -----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._is_current:  # a piece with bytes of two requests: no proxy saw the second one
            raise httptools.HttpParserError("a request inside another")
        self._url = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_body:  # trailers are dropped, as servers may (RFC 9110, 6.5.1)
            return
        self._headers.append((name.lower(), value))
        if len(self._headers) > MAX_HEADERS:
            raise httptools.HttpParserError("too many headers")

    def on_headers_complete(self) -> None:
        parser = self._parser
        if parser.should_upgrade():  # by CONNECT, since OFFER is removed
            raise httptools.HttpParserError("a tunnel")
        headers = dict(self._headers)
        url = httptools.parse_url(self._url)
        if url.path is None:
            raise httptools.HttpParserError("a target without a path")
        if url.schema is not None:  # the host of a target such as http://host/path counts (RFC 9112, 3.2.2)
            host = self._url.partition(b"://")[2].partition(b"/")[0]
            self._headers = [(b"host", host), *(header for header in self._headers if header[0] != b"host")]
        version = parser.get_http_version()
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            "server": self._server,
            "client": self._client,
            "scheme": self._scheme,
            "method": parser.get_method().decode("ascii"),
            "root_path": "",
            "path": unquote(url.path.decode("ascii")),
            "raw_path": url.path,
            "query_string": url.query or b"",
            "headers": self._headers,
        }
        if self.slot.error is not None or self.slot.proxied:
            scope[OVER_LIMIT] = self._service.limits.begin_request(self.slot, self._headers)
        self._is_current = self._in_body = True
        self.is_answered = self._has_begun_response = self._is_body_received = False
        self._deadline_s = None
        self._body_left = int(headers.get(b"content-length", 0))
        self._framing_bytes = self._pieces = 0
        self._closes = version == "1.0" or not parser.should_keep_alive() or self.slot.error is not None
        self._expects_continue = version != "1.0" and headers.get(b"expect", b"").lower() == b"100-continue"
        task = self._loop.create_task(self._answer(scope))
        self._service.tasks.add(task)
        task.add_done_callback(self._service.tasks.discard)

    def on_body(self, body: bytes) -> None:
        self._pieces += 1
        self._framing_bytes = 0
        self._body_left = max(0, self._body_left - len(body))
        self._parts.append(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        self._headers = []

    # --- answering --------------------------------------------------------------------------------------------

    async def _answer(self, scope: dict[str, Any]) -> None:
        """Run the app, read the rest of the request, and begin the next one."""
        try:
            await self._service.app(scope, self.receive, self.send)  # type: ignore[arg-type]
        except asyncio.CancelledError:  # at the end of a shutdown
            pass
        except BaseException:
            _log.exception("a request failed")
        if not self.is_answered:  # the app has not completed its response
            self._refuse(500, FAILED)
        if self.slot.proxied:
            self._service.limits.count_address(self.slot, None)
        deadline_s = self._loop.time() + READ_STALL_S
        while self._in_body and not (self._closes or self._ended):
            self._parts.clear()
            await self._read_body(deadline_s)
        self._parts.clear()
        if self._ended:
            return
        if self._closes:
            self._end()
            return
        self._is_current = False
        self._deadline_s = self._loop.time() + IDLE_S
        self.transport.resume_reading()
        data, self.unparsed = self.unparsed, b""
        self._begin_request(data)

    async def receive(self) -> dict[str, Any]:
        if self._expects_continue and not self._ended:
            self._expects_continue = False
            self.transport.write(CONTINUE)
        await self._read_body()
        while self._is_body_received and not (self._ended or self.is_answered):
            self._news.clear()
            await self._news.wait()
        if self._ended or self.is_answered:
            return {"type": "http.disconnect"}
        body = b"".join(self._parts)
        self._parts.clear()
        self._is_body_received = not self._in_body
        return {"type": "http.request", "body": body, "more_body": self._in_body}

    async def send(self, message: dict[str, Any]) -> None:
        if not self._writable.is_set():
            await self._writable.wait()
        if self._ended or self.is_answered:
            return
        if message["type"] == "http.response.start":
            headers = list(message["headers"])
            if (b"connection", b"close") in headers:
                self._closes = True
            elif self._closes:
                headers.append((b"connection", b"close"))
            self._response_head = response_head(message["status"], headers)
            self._expects_continue = False
            return
        self.transport.writelines([self._response_head, message["body"]])
        self._response_head = b""
        self._has_begun_response = self.slot.answered = True
        if not message.get("more_body", False):
            self.is_answered = True
            self._news.set()

    def _refuse(self, status: int, message: bytes) -> None:
        """Answer with an error, unless a part of another answer was sent, and close."""
        if not self._ended and (self.is_answered or not self._has_begun_response):
            headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(message))]
            self.transport.write(response_head(status, [*headers, (b"connection", b"close")]) + message)
        self._end()

    def _end(self) -> None:
        self._ended = True
        self._news.set()
        self.transport.close()

    def drop_if_stalled(self, now_s: float) -> None:
        """Called every second: close the connection of a client that stopped sending or reading."""
        self.pace.update(unread_bytes(self.transport), now_s)
        if self.pace.lag_s(now_s) > WRITE_STALL_S:
            self.transport.abort()
        elif self._deadline_s is not None and now_s > self._deadline_s:
            self.transport.close()


def response_head(status: int, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Raises ValueError for a header that contains a line break."""
    lines = b"".join([b"%b: %b\r\n" % header for header in headers])
    if not lines.count(b"\r") == lines.count(b"\n") == len(headers):
        raise ValueError("A header of the response contains a line break.")
    return b"%b%b%b\r\n" % (_status_line(status), _date_line(int(time.time())), lines)


@lru_cache
def _status_line(status: int) -> bytes:
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()


@lru_cache(maxsize=1)
def _date_line(now_s: int) -> bytes:
    return f"date: {formatdate(now_s, usegmt=True)}\r\n".encode()
