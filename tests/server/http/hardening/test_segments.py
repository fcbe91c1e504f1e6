"""The division of a client's bytes into TCP segments does not change the answers."""

from __future__ import annotations

import asyncio
import functools
import itertools
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.server.live import connected, form_of, get, live, post

from vectord.server.http.hardening import http_protocol
from vectord.server.http.hardening.connection_limits import ConnectionLimits
from vectord.server.http.hardening.http_protocol import MAX_HEADERS, HttpConnection, HttpService

HEADER_LIMIT_BYTES = 2048
MAX_STEPS = 2000  # of the event loop, for one request

GET = b"GET /a?b=%20c HTTP/1.1\r\nhost: x\r\naccept:\r\nx-y: z z\r\n\r\n"
POST = b'POST /p HTTP/1.1\r\nhost: x\r\ncontent-length: 14\r\n\r\n{\r\n\r\n"a": [1]}'
CHUNKED = (
    b"POST /c HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n8;name=value\r\n\r\n\r\n\r\n\r\n\r\n0\r\n\r\n"
)
TRAILERS = CHUNKED[:-2] + b"x-trailer: y\r\nupgrade: h2c\r\n\r\n"
EXPECT = b"POST /e HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\nab"
OFFER = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAAAAAMAAAAA\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nhost: y\r\n\r\n"
FORM = form_of(
    (b'name="purpose"', b"batch"),
    (b'name="file"; filename="a"', b"{}\r\n\r\n" + SMUGGLED),
    (b'name="c"', b"0\r\n\r\n"),
)
MULTIPART = b"POST /v1/files HTTP/1.1\r\nhost: x\r\ncontent-type: multipart/form-data; boundary=b\r\n"


def with_offer(request: bytes) -> bytes:
    """As Java's HTTP client sends its first request."""
    return request.replace(b"host: x\r\n", OFFER + b"host: x\r\n", 1)


VALID = {
    "GET": GET,
    "POST": POST,
    "chunked": CHUNKED,
    "trailers": TRAILERS,
    "chunks that look like an end": CHUNKED.replace(b"5\r\nhello", b"%x\r\n%b" % (70, b"\r\n0\r\n\r\n" * 10)) + GET,
    "chunk extensions": CHUNKED.replace(b"0\r\n\r\n", b"1;a\r\nb\r\n00;c=d\r\n\r\n") + GET,
    "chunks of a byte": CHUNKED.replace(b"5\r\nhello\r\n", b"1\r\na\r\n" * 20) + GET,
    "expect": EXPECT,
    "blank lines first": b"\r\n\r\n\r\n" + GET,
    "blank lines last": GET + b"\r\n" * HEADER_LIMIT_BYTES,
    "pipelined": GET + POST + CHUNKED + TRAILERS + EXPECT + b"\r\n" + GET + GET,
    "offered upgrade": with_offer(GET) + GET,
    "offered upgrade with a body": with_offer(POST) + with_offer(CHUNKED) + with_offer(EXPECT) + GET,
    "a request as the body of an offered upgrade": with_offer(
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(SMUGGLED), SMUGGLED)
    )
    + GET,
    "an offer between headers of the same name": GET
    + b"POST / HTTP/1.1\r\nUpgrade: a\r\nhost: x\r\nconnection: upgrade"
    b"\r\nupgrade: b\r\ncontent-length: 3\r\n\r\nabc" + GET,
    "close": b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n" + GET,
    "HTTP/1.0": b"GET / HTTP/1.0\r\n\r\n" + GET,
    "chunks in HTTP/1.0": CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0") + GET,
    "HEAD": GET.replace(b"GET", b"HEAD") + GET,
    "HEAD with a body": POST.replace(b"POST", b"HEAD") + GET,
    "other methods with a body": POST.replace(b"POST", b"DELETE") + CHUNKED.replace(b"POST", b"OPTIONS") + GET,
    "OPTIONS": b"OPTIONS /a HTTP/1.1\r\nhost: x\r\norigin: y\r\naccess-control-request-method: POST\r\n\r\n" + GET,
    "no path": b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n" + GET,
    "absolute form": GET.replace(b"/a", b"http://x:1/a") + POST.replace(b"/p", b"HTTP://y/p?q") + GET,
    "absolute form with an offered upgrade": with_offer(POST.replace(b"/p", b"http://x/p?q=1")) + GET,
    "form": MULTIPART + b"content-length: %d\r\n\r\n%b" % (len(FORM), FORM) + GET,
    "form in chunks": MULTIPART
    + b"transfer-encoding: chunked\r\n\r\n%x;a=b\r\n%b\r\n0\r\n\r\n" % (len(FORM), FORM)
    + GET,
    "expect with chunks": CHUNKED.replace(b"host: x", b"host: x\r\nexpect: 100-continue") + GET,
    "expect with a request as its body": EXPECT.replace(b": 2", b": %d" % len(SMUGGLED)).replace(b"ab", SMUGGLED) + GET,
    "expect without a body": GET.replace(b"accept:", b"expect: 100-continue") + GET,
    "quoted chunk extensions": CHUNKED.replace(b"5\r\nhello", b'5;a="b;c";d\r\nhello') + GET,
    "chunk sizes with zeros and capitals": CHUNKED.replace(b"5\r\nhello", b"000A\r\nhellohello") + GET,
    "bytes outside ASCII in values": GET.replace(b"x-y: z", b"cookie: a=\xff\xc3\xa9\r\nx-request-id: \xe9") + GET,
    "many headers, twice": (b"GET / HTTP/1.1\r\n" + b"a:\r\n" * (MAX_HEADERS - 9) + b"\r\n") * 2,
    "headers up to the limit": b"GET / HTTP/1.1\r\n" + b"a:\r\n" * MAX_HEADERS + b"\r\n",
    "bytes up to the limit": b"GET / HTTP/1.1\r\na:" + b" " * (HEADER_LIMIT_BYTES - 23) + b"b\r\n\r\n",
}
CLOSING = ("close", "HTTP/1.0", "chunks in HTTP/1.0")
INVALID = {
    "no HTTP": b"HELLO\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a tunnel": b"CONNECT x:443 HTTP/1.1\r\nhost: x\r\n\r\n",
    "lines without CR": b"GET / HTTP/1.1\nhost: x\n\nGET / HTTP/1.1\nhost: x\n\n",
    "two lengths": b"POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
    "two framings": b"POST / HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "an offer with two framings": b"POST / HTTP/1.1\r\n"
    + OFFER
    + b"content-length: 5\r\ntransfer-encoding: chunked\r\n"
    b"\r\n0\r\n\r\n",
    "unknown coding": b"POST / HTTP/1.1\r\ntransfer-encoding: x\r\n\r\n0\r\n\r\n",
    "target without a host": GET.replace(b"/a", b"file:///a"),
    "target without a path": GET + POST.replace(b"/p", b"http://x") + GET,
    "target outside ASCII": GET.replace(b"/a", b"/\xff"),
    "chunked twice": CHUNKED.replace(b"chunked", b"chunked, chunked") + GET,
    **{
        f"chunk size {size!r}": CHUNKED.replace(b"5\r\nhello", size + b"\r\nhello") + GET
        for size in (b"0x5", b"+5", b"1_0", b" 5", b"5\n", b"\xd9\xa5")
    },
    "chunk size": CHUNKED.replace(b"5\r\nhello", b"zz\r\nhello"),
    "negative chunk size": CHUNKED.replace(b"5\r\nhello", b"-5\r\nhello"),
    "empty chunk size": CHUNKED.replace(b"5\r\nhello", b"\r\nhello"),
    "huge chunk size": CHUNKED.replace(b"5\r\nhello", b"f" * 40 + b"\r\nhello"),
    "chunk end": CHUNKED.replace(b"hello", b"hello!"),
    "bytes after a request": POST + b"\x00garbage\r\n\r\n",
    "a header too many": b"GET / HTTP/1.1\r\n" + b"a:\r\n" * (MAX_HEADERS + 1) + b"\r\n" + GET,
    "a byte too many": b"GET / HTTP/1.1\r\na:" + b" " * (HEADER_LIMIT_BYTES - 22) + b"b\r\n\r\n" + GET,
    "a line that never ends": b"GET /" + b"a" * HEADER_LIMIT_BYTES * 2,
    "endless trailers": CHUNKED[:-2] + b"ab:\r\n" * HEADER_LIMIT_BYTES,
    "endless chunk extension": CHUNKED[:-5] + b"1;" + b"a" * 3 * HEADER_LIMIT_BYTES,
}
CORPUS = VALID | INVALID


class FakeTransport:
    """Keeps the bytes written, and the segments that arrive while reading is paused, as a kernel does."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.closed = False
        self.paused = False

    def write(self, data: bytes) -> None:
        if not self.closed:
            self.written += data

    def writelines(self, parts: Iterable[bytes]) -> None:
        self.write(b"".join(parts))

    def close(self) -> None:
        self.closed = True

    abort = close

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default


async def echo(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answers with everything that the protocol has understood."""
    body, more_body = b"", True
    while more_body:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body, more_body = body + message["body"], message["more_body"]
    seen = shown(scope, body)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(seen))]})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else seen})


def shown(scope: Mapping[str, Any], body: bytes) -> bytes:
    return repr((scope["method"], scope["raw_path"], scope["query_string"], scope["headers"], body)).encode()


async def answers(segments: Iterable[bytes], app: Any = echo) -> tuple[bytes, bool]:
    """All bytes that the protocol sends, without dates, and whether it closes the connection. Each segment arrives when
    the server has nothing to do."""
    limits, transport = ConnectionLimits(1, 1), FakeTransport()
    service = HttpService(app, HEADER_LIMIT_BYTES, limits)
    with socket.socket() as sock:
        slot = limits.admit("192.0.2.1", sock)
        assert slot is not None
        protocol = HttpConnection(service, slot)
    protocol.connection_made(cast(asyncio.Transport, transport))
    for segment in segments:
        await _settled(service, transport)
        if transport.closed:
            break
        protocol.data_received(segment)
    await _settled(service, transport)
    closed = transport.closed
    protocol.connection_lost(None)
    await asyncio.gather(*service.tasks)
    assert service.unparsed.held == 0
    return re.sub(rb"date: .*?\r\n", b"", transport.written), closed


async def _settled(service: HttpService, transport: FakeTransport) -> None:
    """Runs the app until it waits for input. A transport that is paused then would never be read again."""
    for _ in range(MAX_STEPS):
        await asyncio.sleep(0)
        if not service.tasks and (transport.closed or not transport.paused):
            break
        waits_for = [task._fut_waiter for task in service.tasks]  # type: ignore[attr-defined]
        if not transport.paused and not any(future is None or future.done() for future in waits_for):
            break
    assert transport.closed or not transport.paused


@functools.cache
def whole(name: str) -> tuple[bytes, bool]:
    return asyncio.run(answers([CORPUS[name]]))


def cut(data: bytes, places: Iterable[int]) -> Sequence[bytes]:
    bounds = [0, *sorted(places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(bounds) if end > start]


@pytest.mark.parametrize("name", VALID)
def test_valid_requests_are_answered(name: str) -> None:
    """One answer to each request, and the connection stays open unless the client asked for its end."""
    sent, closed = whole(name)
    assert sent.count(b"HTTP/1.1 200 OK") == VALID[name].count(b" HTTP/1.") - (
        VALID[name].count(SMUGGLED) + (name in CLOSING)
    )
    assert closed == (name in CLOSING)


@pytest.mark.parametrize("name", INVALID)
def test_invalid_requests_are_refused(name: str) -> None:
    """Once, with 400 or 431; then the connection closes."""
    sent, closed = whole(name)
    assert sent.count(b"HTTP/1.1 400") + sent.count(b"HTTP/1.1 431") == 1
    assert closed


@pytest.mark.parametrize("name", CORPUS)
def test_two_segments(name: str) -> None:
    """At every place; at every 7th or 61st in longer and repetitive input."""
    data, expected = CORPUS[name], whole(name)

    async def compare() -> None:
        for place in range(1, len(data), 1 if len(data) <= 600 else 7 if len(data) <= 1500 else 61):
            assert await answers([data[:place], data[place:]]) == expected, place

    asyncio.run(compare())


@pytest.mark.parametrize("name", CORPUS)
def test_byte_by_byte(name: str) -> None:
    assert asyncio.run(answers(bytes([byte]) for byte in CORPUS[name])) == whole(name)


@pytest.mark.parametrize("name", CORPUS)
def test_turns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long input is parsed in turns, which change no answer either."""
    expected = whole(name)
    monkeypatch.setattr(http_protocol, "PIECES_A_TURN", 1)
    assert asyncio.run(answers([CORPUS[name]])) == expected
    assert asyncio.run(answers(cut(CORPUS[name], range(7, len(CORPUS[name]), 7)))) == expected


def test_a_request_inside_another_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the parser found the end of a request elsewhere, the rest would be a request that no proxy saw."""
    monkeypatch.setattr(HttpConnection, "_end_of_piece", lambda protocol, data, start: len(data))
    sent, closed = asyncio.run(answers([POST + SMUGGLED]))
    assert closed
    assert b"smuggled" not in sent


@given(st.data())
@settings(max_examples=200)
def test_any_segments(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(list(CORPUS)))
    request = CORPUS[name]
    places = data.draw(st.sets(st.integers(1, len(request) - 1), max_size=12))
    assert asyncio.run(answers(cut(request, places))) == whole(name)


def responding(headers: Mapping[bytes, bytes], *parts: bytes, more_body: bool = False) -> Any:
    """An app that sends these headers and parts of a body, and reads nothing."""

    async def app(scope: object, receive: object, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(headers.items())})
        for number, part in enumerate(parts, 1):
            await send({"type": "http.response.body", "body": part, "more_body": more_body or number < len(parts)})

    return app


async def failing(scope: object, receive: object, send: object) -> None:
    raise ZeroDivisionError


TWO = {b"content-length": b"2"}
FAULTY = {
    "an exception": (failing, b"500", b"Internal Server Error"),
    "no response": (responding(TWO), b"500", b"Internal Server Error"),
    "a line break in a header": (responding({**TWO, b"a": b"b\r\nc: d"}, b"ab"), b"500", b"Internal Server Error"),
    "a body without an end": (responding(TWO, b"a", more_body=True), b"200", b"a"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_faulty_response_ends_the_connection(name: str) -> None:
    """The next response could not be told from it."""
    app, status, body = FAULTY[name]
    sent, closed = asyncio.run(answers([GET + GET], app))
    head, _, received = sent.partition(b"\r\n\r\n")
    assert closed and head.startswith(b"HTTP/1.1 " + status)
    assert received in (body, b"") and b"c: d" not in head


def test_a_response_without_a_body_has_no_length() -> None:
    """204, 304; the connection continues."""

    async def app(scope: object, receive: object, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    assert asyncio.run(answers([GET + GET], app)) == (b"HTTP/1.1 204 No Content\r\n\r\n" * 2, False)


# --- over a socket -------------------------------------------------------------------------------------------------

HELLO = post({"input": "hello"})
OFFERED = post({"input": "hello"}, headers={"connection": "Upgrade", "upgrade": "h2c"})
HEALTH = get("/health/live")
LAST = get("/health/live", {"connection": "close"})


@pytest.mark.parametrize(
    ("request_bytes", "expected"),
    [
        (HELLO + OFFERED + HEALTH + HELLO + LAST, [200, 200, 200, 200, 200]),
        (post(HEALTH, headers={"connection": "Upgrade", "upgrade": "h2c"}) + LAST, [400, 200]),
        (HELLO + b"\x00", [200, 400]),
    ],
    ids=["pipelined", "a request as the body of an offered upgrade", "invalid"],
)
async def test_segments_over_a_socket(request_bytes: bytes, expected: Sequence[int]) -> None:
    """With the app, whose answers then do not depend on the segments either."""
    async with live() as running:
        for size in (len(request_bytes), 1, 7, 50):
            async with connected(running) as client:
                for segment in cut(request_bytes, range(size, len(request_bytes), size)):
                    client.send(segment)
                    await asyncio.sleep(0)
                assert [(await client.reply()).status for _ in expected] == list(expected)
                assert await client.closed()
