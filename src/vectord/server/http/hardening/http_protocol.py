"""HTTP/1.1 over httptools, for an ASGI app. One HttpConnection per connection, on the event loop.

Only httptools decides where heads, chunks and requests end, and which input is invalid. This module chooses the pieces
in which httptools receives the input. A piece ends where a request may end: after a blank line, or after the length
that a head announced. Input after a request is held, unparsed, until the request is answered, so the answers do not
depend on how the input was divided into TCP segments.

Bounded: the bytes and the number of headers, per request; the unparsed input of all connections together; the framing
of chunked bodies; the work of one iteration of the event loop; the time to send a request or to read a response.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
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
BUFFERED_BYTES = 2**16  # of a body that the app has not read, before the connection is read no further
WRITE_BUFFER_BYTES = 2**16  # of responses in this process, above which `send` waits until the client has read them all
READ_STALL_S = 30.0  # for a complete head, and between two parts of a body
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
    _turns: deque[HttpConnection] = field(default_factory=deque)

    def add_turn(self, connection: HttpConnection) -> None:
        """Continue this connection's input later: of one of the waiting connections in each iteration of the event
        loop."""
        if not self._turns:
            asyncio.get_running_loop().call_soon(self._next_turn)
        self._turns.append(connection)

    def _next_turn(self) -> None:
        connection = self._turns.popleft()
        if self._turns:
            asyncio.get_running_loop().call_soon(self._next_turn)
        connection.take_turn()


class HttpConnection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, service: HttpService, slot: ConnectionSlot) -> None:
        self.slot = slot
        self.writable = asyncio.Event()
        self.writable.set()
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._request: Request | None = None  # the last one
        self._in_body = False
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body_left = 0  # of the length that the head announced
        self._framing_bytes = 0  # parsed since the last head, or since the last data of a chunked body
        self._pieces = 0  # of input, parsed in this turn
        self.unparsed = b""
        self._counted_bytes = 0  # of `unparsed`, in the budget of all connections
        self._waits_for_turn = False
        self._is_paused = False
        self._last_read_s = self._loop.time()  # when a head began, a part of a body arrived, or a response ended
        self._ends = False  # ignores input; closes when the current response is complete
        self.pace = ReadPace(self._last_read_s)

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
        if self._ends:
            return
        if not self.is_answered if self._in_body else not (self._framing_bytes or self.unparsed):
            self._last_read_s = self._loop.time()
        self._parse(self.unparsed + data if self.unparsed else data)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ends = True
        self._service.connections.discard(self)
        self._service.limits.release(self.slot)
        self._hold(b"")
        if self._request is not None:
            self._request.disconnect()
        self.writable.set()
        # Cycles, which would wait for the garbage collector: it stops the event loop for 30 ms during a flood.
        self.slot.close = lambda: None
        self._request = None
        del self._parser

    # --- the input --------------------------------------------------------------------------------------------

    def take_turn(self) -> None:
        """Called by HttpService."""
        self._waits_for_turn = False
        if self.unparsed and not self._ends:
            self._parse(self.unparsed)

    def _parse(self, data: bytes) -> None:
        """Parse up to the end of the current request, or of the next one if there is none. Hold the rest."""
        start, self._pieces = 0, 0
        while start < len(data) and not self._ends and self._expects_input():
            if self._pieces >= PIECES_A_TURN:
                self._waits_for_turn = True
                self._service.add_turn(self)
                break
            end = self._end_of_piece(data, start)
            if end == start:
                break
            piece = memoryview(data)[start:end] if self._in_body else OFFER.sub(b"", data[start:end])
            self._framing_bytes += end - start
            self._feed(self._parser, piece)
            start = end
        self._hold(data[start:])

    def _expects_input(self) -> bool:
        return not self._waits_for_turn and (self._in_body or self.is_answered)

    def _end_of_piece(self, data: bytes, start: int) -> int:
        """Where the next piece ends; `start` if more input must arrive first, or if a head or framing is too large."""
        if self._body_left:
            return min(len(data), start + self._body_left)
        limit = start + self._service.header_limit_bytes - self._framing_bytes
        stop = min(len(data), limit, start + PIECE_BYTES) if self._in_body else min(len(data), limit)
        found = data.find(BLANK_LINE, start, stop)
        if found >= 0:
            return found + len(BLANK_LINE)
        if limit < (start + len(BLANK_LINE) if self._in_body else len(data)):
            self.refuse(431, TOO_LARGE)
        elif self._in_body:  # without bytes in which a blank line may begin that the next segment completes
            last = data[max(start, stop - 3) : stop]
            return stop - len(last) + len(last.rstrip(b"\r\n"))
        else:  # A complete head is parsed at once: thousands of unfinished ones cost neither time nor objects.
            self._feed(httptools.HttpRequestParser(None), data[start : start + EAGER_BYTES])
        return start

    def _feed(self, parser: httptools.HttpRequestParser, piece: memoryview | bytes) -> None:
        self._pieces += 1
        try:
            parser.feed_data(piece)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if len(self._headers) > MAX_HEADERS:
                self.refuse(431, TOO_LARGE)
            else:
                self.refuse(400, INVALID)

    def _hold(self, data: bytes) -> None:
        """Keep input for later, if there is room."""
        self.unparsed = b"" if self._ends else data
        counted_bytes = max(0, len(self.unparsed) - FREE_BYTES)
        if counted_bytes != self._counted_bytes:
            self._service.unparsed.release(self._counted_bytes)
            self._counted_bytes = counted_bytes
            if not self._service.unparsed.hold(counted_bytes):
                self._counted_bytes, self.unparsed = 0, b""
                if self.is_answered:
                    self.refuse(503, TOO_MANY_BYTES)
                self._ends = True
        self.update_reading()

    def update_reading(self) -> None:
        """Read no more while input must not be parsed, or while the app does not read a body."""
        unread_bytes = 0 if self._request is None else self._request.unread_bytes
        pauses = not self._ends and (
            unread_bytes > BUFFERED_BYTES or (self.unparsed != b"" and not self._expects_input())
        )
        if pauses != self._is_paused and not self.transport.is_closing():
            self._is_paused = pauses
            if pauses:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    # --- the parser's calls -----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if not self.is_answered:  # a piece with bytes of two requests: no proxy saw the second one
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
        self._in_body = True
        self._body_left = int(headers.get(b"content-length", 0))
        self._framing_bytes = 0
        keep_alive = version != "1.0" and parser.should_keep_alive() and self.slot.error is None
        expects = version != "1.0" and headers.get(b"expect", b"").lower() == b"100-continue"
        self._request = Request(self, scope, keep_alive=keep_alive, expects_continue=expects)
        task = self._loop.create_task(self._request.run(self._service.app))
        self._service.tasks.add(task)
        task.add_done_callback(self._service.tasks.discard)

    def on_body(self, body: bytes) -> None:
        assert self._request is not None
        self._pieces += 1
        self._framing_bytes = 0
        self._body_left = max(0, self._body_left - len(body))
        self._request.add_body(body)

    def on_message_complete(self) -> None:
        assert self._request is not None
        self._in_body = False
        self._headers = []
        self._body_left = self._framing_bytes = 0
        self._request.end_body()
        if not self._request.keep_alive:
            self._ends = True

    # --- answering --------------------------------------------------------------------------------------------

    def refuse(self, status: int, message: bytes) -> None:
        """Answer with an error, unless a part of another answer was sent, and close."""
        self._ends = True
        if self._request is None or self._request.complete or not self._request.started:
            headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(message))]
            self.transport.write(response_head(status, [*headers, (b"connection", b"close")]) + message)
        self.transport.close()

    def on_response_complete(self, *, keep_alive: bool) -> None:
        if self.slot.proxied:
            self._service.limits.count_address(self.slot, None)
        if self.transport.is_closing():
            return
        if self._ends or not keep_alive:
            self._ends = True
            self.transport.close()
            return
        self._last_read_s = self._loop.time()
        if self.unparsed:
            self._parse(self.unparsed)
        else:
            self.update_reading()

    @property
    def is_answered(self) -> bool:
        """Whether no request waits for its response, or for the rest of it."""
        return self._request is None or self._request.complete

    # --- stalled clients --------------------------------------------------------------------------------------

    def drop_if_stalled(self, now_s: float) -> None:
        """Called every second: close the connection of a client that stopped sending or reading."""
        self.pace.update(unread_bytes(self.transport), now_s)
        if self.pace.lag_s(now_s) > WRITE_STALL_S:
            self.transport.abort()
            return
        if self.slot.error is not None and self._request is None:
            timeout_s = RESERVED_S
        elif not self._in_body and not self.is_answered:
            return
        else:  # of an answered request: for all of its body
            timeout_s = READ_STALL_S if self._in_body or self._framing_bytes or self.unparsed else IDLE_S
        if now_s - self._last_read_s > timeout_s:
            self.transport.close()


class Request:
    """One request and its response: ASGI's `receive` and `send`. A client that has left is no error.

    A response needs its Content-Length, and exactly that many bytes of a body, none for HEAD; answer.py sends no other.
    """

    def __init__(
        self, connection: HttpConnection, scope: dict[str, Any], *, keep_alive: bool, expects_continue: bool
    ) -> None:
        self.keep_alive = keep_alive
        self.started = False  # a part of the response is written
        self.complete = False
        self.ended = False  # complete, or the client has left
        self.unread_bytes = 0
        self._connection = connection
        self._scope = scope
        self._expects_continue = expects_continue
        self._parts: list[bytes] = []
        self._has_more_body = True
        self._news = asyncio.Event()
        self._head = b""  # of the response, until the first part of its body

    def add_body(self, part: bytes) -> None:
        if not self.ended:
            self._parts.append(part)
            self.unread_bytes += len(part)
            self._news.set()

    def end_body(self) -> None:
        self._has_more_body = False
        self._news.set()

    def disconnect(self) -> None:
        self.ended = True
        self._news.set()

    async def run(self, app: ASGIApp) -> None:
        try:
            await app(self._scope, self.receive, self.send)  # type: ignore[arg-type]
        except asyncio.CancelledError:  # at the end of a shutdown
            pass
        except BaseException:
            _log.exception("a request failed")
        if not self.ended:  # the app has not completed its response
            self._connection.refuse(500, FAILED)

    async def receive(self) -> dict[str, Any]:
        if self._expects_continue and not self.ended:
            self._expects_continue = False
            self._connection.transport.write(CONTINUE)
        if not self.ended:
            await self._news.wait()
            self._news.clear()
        if self.ended:
            return {"type": "http.disconnect"}
        body = b"".join(self._parts)
        self._parts.clear()
        self.unread_bytes = 0
        self._connection.update_reading()
        return {"type": "http.request", "body": body, "more_body": self._has_more_body}

    async def send(self, message: dict[str, Any]) -> None:
        connection = self._connection
        if not connection.writable.is_set():
            await connection.writable.wait()
        if self.ended:
            return
        if message["type"] == "http.response.start":
            headers = list(message["headers"])
            if (b"connection", b"close") in headers:
                self.keep_alive = False
            elif not self.keep_alive:
                headers.append((b"connection", b"close"))
            self._head = response_head(message["status"], headers)
            self._expects_continue = False
            return
        connection.transport.writelines([self._head, message["body"]])
        self._head = b""
        self.started = connection.slot.answered = True
        if not message.get("more_body", False):
            self.complete = self.ended = True
            self._parts.clear()
            self.unread_bytes = 0
            self._news.set()
            connection.on_response_complete(keep_alive=self.keep_alive)


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
