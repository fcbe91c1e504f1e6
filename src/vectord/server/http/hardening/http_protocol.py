"""uvicorn's HTTP/1.1 protocol with the bounds that it lacks. One object per connection, on the event loop.

Bounded while they arrive: the bytes and the number of headers, per request and of all connections together, the framing
of chunked bodies, and the time to send a request or to read a response; write_backpressure.py bounds the bytes of all
responses together.

Requests of a connection are parsed one after the other: input after a request is held, unparsed, until the request is
answered. The answers therefore do not depend on how the input was divided into TCP segments. A request that a
half-closed connection cuts off is answered, and a request that offers an upgrade keeps its body (upgrade.py).

Depends on attributes that uvicorn does not document (cycle, flow, parser); tests/server/http/hardening drives each of
them over a real socket.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from enum import Enum, auto
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from vectord.server.http.hardening.connection_limits import OVER_LIMIT, RESERVED_S, SLOT, ConnectionSlot
from vectord.server.http.hardening.upgrade import UPGRADE, head_without_upgrade
from vectord.server.http.hardening.write_backpressure import WRITE_STALL_S, ReadPace

MAX_HEADERS = 256
HEADER_COST_BYTES = 200  # of the objects of one header, in addition to its bytes
HEADS_BYTES = 32 * 2**20  # of all unfinished heads and unparsed input, beyond FREE_HEAD_BYTES a connection
FREE_HEAD_BYTES = 4096  # less than the other state of a connection
EAGER_BYTES = 256  # of a head are parsed as they arrive; the rest waits, unparsed, for its end
CHUNKS_A_TURN = 2048  # 2 ms; one segment of 256 kB may have 40,000 chunks of one byte
READ_STALL_S = 30.0  # for a complete head, and between two parts of a body
FIRST_REQUEST_S = 75.0  # before the first byte of the first request
KEEP_ALIVE_S = 75.0  # between requests; longer than common clients, so that they close first and lose no request

BLANK_LINE = b"\r\n\r\n"
TOO_LARGE = b"Request line and headers are too large."
TOO_MANY_BYTES = b"The unfinished requests of all connections are too large; try again."
INVALID = b"Invalid HTTP request received."


class Phase(Enum):
    """What the next byte of a connection belongs to."""

    HEAD = auto()  # a head, or the pause before it
    BODY = auto()  # a body with Content-Length
    CHUNKS = auto()  # a chunked body
    TRAILERS = auto()  # after the size of its last chunk


class HeadRoom:
    """Bounds the memory of the unfinished heads and the unparsed input of all connections together."""

    def __init__(self, limit_bytes: int = HEADS_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self.held_bytes = 0

    def change(self, before_bytes: int, now_bytes: int) -> bool:
        """Count one connection's bytes. False if it has to give them back because all connections hold too much."""
        self.held_bytes += now_bytes - before_bytes
        return now_bytes <= FREE_HEAD_BYTES or self.held_bytes <= self._limit_bytes


class ParseTurns:
    """Connections whose input takes long to parse: one of them continues in each iteration of the event loop."""

    def __init__(self) -> None:
        self._waiting: deque[HttpProtocol] = deque()

    def add(self, connection: HttpProtocol) -> None:
        if not self._waiting:
            connection.loop.call_soon(self._next)
        self._waiting.append(connection)

    def _next(self) -> None:
        connection = self._waiting.popleft()
        if self._waiting:
            connection.loop.call_soon(self._next)
        connection.parse_held()


class HttpProtocol(HttpToolsProtocol):
    def __init__(
        self,
        *args: Any,
        header_limit_bytes: int,
        head_room: HeadRoom,
        turns: ParseTurns,
        slot: ConnectionSlot,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._header_limit_bytes = header_limit_bytes
        self._head_room = head_room
        self._turns = turns
        self._waits_for_turn = False
        self._slot = slot
        self._counted_bytes = 0  # in head_room
        self._phase = Phase.HEAD
        self._head_bytes = 0  # of the head, or of the trailers
        self._waiting_head = bytearray()  # of an unfinished head, after EAGER_BYTES
        self._body_left = 0  # bytes of Phase.BODY
        self._chunk_left = 0  # bytes of the chunk
        self._size_line = b""  # the begun line of a chunk's size
        self._last_bytes = b""  # up to 3, in which a blank line may have begun
        self._unparsed = b""  # input after a request that is not answered
        self._last_read_s = self.loop.time()  # when a head began, a part of a body arrived, or a response ended
        self.pace = ReadPace(self._last_read_s)
        self._ends = False  # ignores input; closes when the current response is complete

    # --- reading ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._slot.close = self.abort

    def data_received(self, data: bytes) -> None:
        if self._ends:
            return
        if not self._head_bytes if self._phase is Phase.HEAD else not self._is_answered():
            self._last_read_s = self.loop.time()
        self._parse(self._unparsed + data if self._unparsed else data)

    def _parse(self, data: bytes) -> None:
        """Parse up to the end of the current request, or of the next one if there is none. Hold the rest."""
        start = 0
        while start < len(data) and not self._ends and (self._phase is not Phase.HEAD or self._is_answered()):
            in_chunks = self._phase is Phase.CHUNKS
            end = self._end_of_piece(data, start)
            if end == start:
                self._refuse(431, TOO_LARGE)
                break
            piece = data if end - start == len(data) else memoryview(data)[start:end]
            if not self._waits_for_head(piece):
                self._feed(piece)
            start = end
            if in_chunks and self._phase is Phase.CHUNKS and start < len(data):
                self._wait_for_turn()
                break
        held = b"" if self._ends else data[start:]
        if held:
            self.transport.pause_reading()  # and not flow: a request that waits for a disconnect would resume it
        elif self._unparsed and not self.transport.is_closing() and not self.flow.read_paused:
            self.transport.resume_reading()
        self._unparsed = held
        self._count_input()

    def _wait_for_turn(self) -> None:
        if not self._waits_for_turn:
            self._waits_for_turn = True
            self._turns.add(self)

    def parse_held(self) -> None:
        """Called by ParseTurns."""
        self._waits_for_turn = False
        if self._unparsed and not self._ends:
            self._parse(self._unparsed)

    def _end_of_piece(self, data: bytes, start: int) -> int:
        """Where the piece at `start` ends that belongs to one message; `start` if a head or trailers are too large."""
        if self._phase is Phase.BODY:
            end = min(len(data), start + self._body_left)
            self._body_left -= end - start
            return end
        if self._phase is Phase.CHUNKS:
            return self._end_of_chunks(data, start)
        stop = min(len(data), start + self._header_limit_bytes - self._head_bytes)
        end = self._end_of_blank_line(data, start, stop)
        self._head_bytes += end - start
        return end

    def _end_of_chunks(self, data: bytes, start: int) -> int:
        """After the size of the last chunk, or of the last one of a turn, or the end of `data`; `start` if the line of
        a size is too long.

        The parser reads the same bytes and refuses invalid ones; this only finds the end."""
        place = start
        chunks = 0
        while (place := place + self._chunk_left) < len(data):
            self._chunk_left = 0
            end = data.find(b"\n", place)
            line = self._size_line + data[place : end if end >= 0 else len(data)]
            if len(line) > self._header_limit_bytes:
                return start
            if end < 0:
                self._size_line = line
                return len(data)
            self._size_line = b""
            place = end + 1
            try:
                size = int(line.partition(b";")[0], 16)
            except ValueError:
                return len(data)
            if size <= 0:
                self._phase = Phase.TRAILERS
                self._last_bytes = b"\r\n"
                return place
            self._chunk_left = size + 2  # and the end of its line
            chunks += 1
            if chunks == CHUNKS_A_TURN:
                return place
        self._chunk_left = place - len(data)
        return len(data)

    def _end_of_blank_line(self, data: bytes, start: int, stop: int) -> int:
        """Heads and trailers end with a blank line. `stop` if there is none before."""
        last = self._last_bytes
        self._last_bytes = b""
        if last and (found := (last + data[start : min(start + 3, stop)]).find(BLANK_LINE)) >= 0:
            return start + found + len(BLANK_LINE) - len(last)
        found = data.find(BLANK_LINE, start, stop)
        if found >= 0:
            return found + len(BLANK_LINE)
        self._last_bytes = (last + data[max(start, stop - 3) : stop])[-3:]
        return stop

    def _waits_for_head(self, piece: bytes | memoryview) -> bool:
        """Keep a piece of a long head until the head is complete, so that an unfinished one costs no time."""
        is_unfinished = self._phase is Phase.HEAD and bool(self._last_bytes)
        if not self._waiting_head and not (is_unfinished and self._head_bytes > EAGER_BYTES):
            return False
        eager = max(0, EAGER_BYTES - (self._head_bytes - len(piece)))
        if eager:
            self._feed(piece[:eager])
        self._waiting_head += piece[eager:]
        if not is_unfinished:
            rest = bytes(self._waiting_head)
            self._waiting_head.clear()
            self._feed(rest)
        elif not self._ends:
            lines = len(self.headers) + self._waiting_head.count(b"\n")
            if lines > MAX_HEADERS + (not self.headers):  # without parsed headers, the request line may be among them
                self._refuse(431, TOO_LARGE)
        return True

    def _feed(self, piece: bytes | memoryview) -> None:
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            self._feed_without_upgrade()
        except httptools.HttpParserError:
            if len(self.headers or ()) > MAX_HEADERS:
                self._refuse(431, TOO_LARGE)
            else:
                self._refuse(400, INVALID)

    def _feed_without_upgrade(self) -> None:
        """The parser has read a head that offers another protocol, and stopped after it."""
        method = self.parser.get_method()
        if method == b"CONNECT" or not any(name == UPGRADE for name, _ in self.headers):
            self._refuse(400, INVALID)
            return
        head = head_without_upgrade(method, self.url, self.parser.get_http_version(), self.headers)
        self.parser = httptools.HttpRequestParser(self)  # the other one ignores everything after `Connection: close`
        self._feed(head)

    def on_message_begin(self) -> None:
        if not self._is_answered():  # the parser and _end_of_piece disagree about the end of the last request
            raise httptools.HttpParserError("a request inside another")
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers are dropped, as servers may (RFC 9110, 6.5.1); uvicorn would add them to the request's headers.
        if self._phase is Phase.HEAD:
            super().on_header(name, value)
            if len(self.headers) > MAX_HEADERS:
                raise httptools.HttpParserError("too many headers")

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._head_bytes = 0
        self._body_left = 0
        self._phase = Phase.BODY
        self._obey_absolute_target()
        for name, value in self.headers:
            if name == b"content-length":
                self._body_left = int(value)
            elif name == b"transfer-encoding":
                self._phase = Phase.CHUNKS
        cast(dict[str, Any], self.scope)[SLOT] = self._slot
        if self._slot.reserved or self._slot.proxied:
            error = self._slot.begin_request(self.headers)
            if error is not None:
                cast(dict[str, Any], self.scope)[OVER_LIMIT] = error
        try:
            super().on_headers_complete()
        except Exception:  # of uvicorn, for a target that it cannot split; the request has no cycle
            self._phase = Phase.HEAD
            raise
        if self._slot.reserved:
            self.cycle.keep_alive = False

    def _obey_absolute_target(self) -> None:
        """The host of a target such as http://host/path replaces the header's (RFC 9112, 3.2.2)."""
        scheme, separator, rest = self.url.partition(b"://")
        if separator and scheme.isalpha():
            host = rest.partition(b"/")[0].partition(b"?")[0]
            self.headers[:] = [(b"host", host), *(header for header in self.headers if header[0] != b"host")]

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._phase = Phase.HEAD
        self._head_bytes = 0
        self._last_bytes = b""
        super().on_message_complete()
        if not self.cycle.keep_alive:
            self._ends = True

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio's meaning: True keeps our side open
        """The client closed its side. If a body of known length is incomplete, the request is still answered."""
        if self._ends or self._phase is not Phase.BODY or self._is_answered():
            return False
        self._ends = True
        cycle = self.cycle
        cycle.keep_alive = False
        cycle.more_body = False  # body.py compares the received bytes with Content-Length
        cycle.message_event.set()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._slot.limits.release(self._slot)
        self._ends = True
        self._unparsed = b""
        self._head_room.change(self._counted_bytes, 0)
        self._counted_bytes = 0
        super().connection_lost(exc)
        # Cycles, which would wait for the garbage collector: it stops the event loop for 30 ms during a flood.
        self._slot.close = _nothing
        self.cycle = None  # type: ignore[assignment]  # uvicorn's own value before the first request
        self.transport = None  # type: ignore[assignment]  # uvicorn's own value before the connection

    # --- answering --------------------------------------------------------------------------------------------

    def _refuse(self, status: int, message: bytes) -> None:
        """Answer invalid input, unless a part of another answer was sent, and close."""
        self._ends = True
        if self._phase is Phase.HEAD or not self.cycle.response_started:
            head = f"HTTP/1.1 {status} \r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
            self.transport.write(head.encode() + b"content-length: %d\r\n\r\n%b" % (len(message), message))
        self.transport.close()

    def on_response_complete(self) -> None:
        # Replaces uvicorn's, which starts a timer for each response; drop_if_stalled closes idle connections.
        self.server_state.total_requests += 1
        if self._slot.answering:
            self._slot.end_request()
        if self.transport.is_closing():
            return
        if self._ends:
            self.transport.close()
            return
        self._last_read_s = self.loop.time()
        self.flow.resume_reading()
        if self._unparsed:
            self._parse(self._unparsed)

    def _is_answered(self) -> bool:
        """Whether no request waits for its response, or for the rest of it."""
        return self.cycle is None or self.cycle.response_complete

    def _count_input(self) -> None:
        n_bytes = len(self._unparsed)
        if self._phase is Phase.HEAD and self._head_bytes and not self._ends:
            n_bytes += self._head_bytes + HEADER_COST_BYTES * len(self.headers or ())
        if n_bytes == self._counted_bytes:
            return
        has_room = self._head_room.change(self._counted_bytes, n_bytes)
        self._counted_bytes = n_bytes
        if has_room:
            return
        self._unparsed = b""
        if self._is_answered():
            self._refuse(503, TOO_MANY_BYTES)
        self._ends = True
        self._count_input()

    # --- stalled clients --------------------------------------------------------------------------------------

    def drop_if_stalled(self, now_s: float, timeout_factor: float = 1.0) -> None:
        """Called every second: close the connection of a client that stopped sending or reading.

        timeout_factor: multiplies the timeout for sending.
        """
        self.pace.update(self.held_bytes, now_s)
        if self.pace.lag_s(now_s) > WRITE_STALL_S:
            self.abort()
        elif now_s - self._last_read_s > self._read_timeout_s() * timeout_factor:
            self.transport.close()

    def close_if_idle(self, *, before_request: bool) -> None:
        """Called while the server drains. before_request: also if a request is expected, or has begun to arrive."""
        if self._is_answered() and (before_request or (self.cycle is not None and not self._head_bytes)):
            self.transport.close()

    @property
    def held_bytes(self) -> int:
        """See Connection in write_backpressure.py."""
        held_bytes = self.transport.get_write_buffer_size()
        return held_bytes + kernel_bytes(self.transport) if held_bytes else 0

    def abort(self) -> None:
        self.transport.abort()

    def _read_timeout_s(self) -> float:
        if self._slot.reserved and not self._slot.answering:
            return RESERVED_S
        if self._phase is not Phase.HEAD or self._head_bytes:
            return READ_STALL_S  # of an answered request: for all of its body
        if self.cycle is None:
            return FIRST_REQUEST_S
        return KEEP_ALIVE_S if self._is_answered() else float("inf")


def _nothing() -> None:
    pass


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
