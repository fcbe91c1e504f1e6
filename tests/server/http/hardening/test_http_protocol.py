"""The bounds of the HTTP/1.1 protocol, over a real socket."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any

import httptools
import pytest
from tests.collection import without_collection
from tests.server.fakes import FakeEngine
from tests.server.live import ask, connected, get, live, post, until

from vectord.server.http.hardening import http_protocol
from vectord.server.http.hardening.http_protocol import (
    EAGER_BYTES,
    FREE_BYTES,
    READ_STALL_S,
    HttpService,
)
from vectord.server.http.run import HttpPort

HELLO = {"input": "hello"}


CHUNKED = post(b"", headers={"content-length": "", "transfer-encoding": "chunked"})
CHUNKS = b'11\r\n{"input":"hello"}\r\n0\r\n'


async def test_trailers_are_not_headers() -> None:
    """Trailers of a chunked body have no effect, since a proxy may not have checked them."""
    async with live() as running, connected(running) as client:
        client.send(CHUNKED + CHUNKS + b"x-request-id: evil\r\ncontent-encoding: br\r\n\r\n")
        reply = await client.reply()
        assert (reply.status, reply.headers["x-request-id"] == "evil") == (200, False)


async def test_connections_with_many_chunks_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment of 40,000 chunks would stop the event loop for 30 ms, on each connection. One of the connections is
    parsed in an iteration of the loop, up to PIECES_A_TURN pieces; other requests are answered in between."""
    turns: list[object] = []
    take_turn = HttpService.take_turn

    async def count(service: HttpService) -> None:
        turns.append(asyncio.current_task())
        await take_turn(service)

    monkeypatch.setattr(HttpService, "take_turn", count)
    monkeypatch.setattr(http_protocol, "PIECES_A_TURN", 16)
    monkeypatch.setattr(http_protocol, "PIECE_BYTES", 64)
    chunks = b"1\r\n \r\n" * 4000 + CHUNKS + b"\r\n"
    async with live() as running, connected(running) as first, connected(running) as second:
        first.send(CHUNKED + chunks)
        second.send(CHUNKED + chunks)
        await until(lambda: len(set(turns)) == 2)
        began = len(turns)
        assert (await ask(running, get("/health/live"))).status == 200
        assert len(turns) - began < 100
        assert [(await client.reply()).status for client in (first, second)] == [200, 200]
        assert len(turns) > 300


async def test_a_long_unfinished_head_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond its first EAGER_BYTES, so that thousands of them take no time; a complete one is answered."""
    parsed: list[int] = []

    class Counting(httptools.HttpRequestParser):
        def feed_data(self, data: Any) -> None:
            parsed.append(len(data))
            super().feed_data(data)

    monkeypatch.setattr(httptools, "HttpRequestParser", Counting)
    async with live() as running, connected(running) as client:
        client.send(b"GET /health/live HTTP/1.1\r\nhost: x\r\n" + b"filler: aaaaaaaaaa\r\n" * 120)
        await until(lambda: bool(parsed))
        client.send(b"filler: aaaaaaaaaa\r\n" * 120)
        await until(lambda: running.server.service.unparsed.held > 0)
        assert set(parsed) == {EAGER_BYTES}
        client.send(b"\r\n")
        assert (await client.reply()).status == 200


async def test_unfinished_heads_are_bounded_together() -> None:
    """Connections that hold little are unaffected; the room is free again after a disconnect."""
    async with live() as running, connected(running) as small, connected(running) as large:
        small.send(get("/health/live")[:-2])
        unparsed = running.server.service.unparsed
        unparsed.add(unparsed.limit)
        await until(lambda: any(connection.unparsed for connection in running.server.connections))
        large.send(b"GET / HTTP/1.1\r\nlarge: " + b"a" * 2 * FREE_BYTES)
        assert (await large.reply()).status == 503
        assert await large.closed()
        small.send(b"\r\n")
        assert (await small.reply()).status == 200
        await until(lambda: unparsed.held == unparsed.limit)


async def test_an_endless_head_is_431() -> None:
    """Long before it uses much memory."""
    async with live(header_limit_bytes=2048) as running, connected(running) as client:
        client.send(b"GET / HTTP/1.1\r\nendless: ")
        sent_bytes = 0
        reply = asyncio.create_task(client.reply())
        while not reply.done():
            client.send(b"a" * 1000)
            sent_bytes += 1000
            await asyncio.sleep(0)
            assert sent_bytes < 10_000_000
        assert (await reply).status == 431


@pytest.mark.parametrize(
    "request_bytes",
    [
        post(b"", headers={"content-length": "", "transfer-encoding": "chunked"}) + b"5\r\nhel",
        post(HELLO)[:-4],
        b"POST /v1/embed HT",
    ],
    ids=["chunked", "length", "head"],
)
async def test_incomplete_requests_close_the_connection(request_bytes: bytes) -> None:
    async with live() as running, connected(running) as client:
        client.send(request_bytes)
        client.writer.write_eof()
        assert await client.closed()


async def test_responses_have_a_date() -> None:
    """RFC 9110, 6.6.1."""
    async with live() as running:
        for request in (get("/health/live"), b"HELLO\r\n\r\n"):
            sent_s = parsedate_to_datetime((await ask(running, request)).headers["date"]).timestamp()
            assert abs(time.time() - sent_s) < 60


async def test_pipelined_requests_are_not_read_ahead() -> None:
    """While one is answered nothing more is read, so that the client's kernel holds the rest; all are answered."""
    engine = FakeEngine(held=True)
    async with live(engine) as running, connected(running) as client:
        client.send(post(HELLO) * 500)
        await engine.entered.acquire()
        (protocol,) = running.server.connections
        await until(lambda: not protocol.transport.is_reading())
        assert len(engine.callers) == 1
        engine.gate.set()
        for _ in range(500):
            assert (await client.reply()).status == 200


# --- clients that take their time --------------------------------------------------------------------------------


@pytest.fixture
def hour(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The server's check sees a clock one hour ahead."""
    check = HttpPort.check
    monkeypatch.setattr(HttpPort, "check", lambda port, now_s: check(port, now_s + 3600))
    yield


@pytest.mark.usefixtures("hour")
@pytest.mark.parametrize(
    "sent",
    [b"", b"POST /v1/em", b"POST /v1/embed HTTP/1.1\r\nhost: x\r\n", post(HELLO)[:-4]],
    ids=["nothing", "line", "head", "body"],
)
async def test_a_client_that_stops_sending_is_disconnected(sent: bytes) -> None:
    """In every state of a request."""
    async with live() as running, connected(running) as client:
        client.send(sent)
        assert await client.closed()


@pytest.mark.parametrize("n_requests", [1, 2])
async def test_a_waiting_client_stays_connected(n_requests: int) -> None:
    """However long the engine takes, and also if the client has sent its next request."""
    engine = FakeEngine(held=True)
    async with live(engine) as running, connected(running) as client:
        client.send(post(HELLO) * n_requests)
        await engine.entered.acquire()
        (protocol,) = running.server.connections
        protocol.drop_if_stalled(asyncio.get_running_loop().time() + 3600)
        engine.gate.set()
        for _ in range(n_requests):
            assert (await client.reply()).status == 200


async def test_a_client_that_does_not_read_is_disconnected() -> None:
    """Unread responses do not stay in memory."""
    engine = FakeEngine(dimensions=400_000)
    async with live(engine) as running, connected(running) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.send(post(HELLO))
        (protocol,) = running.server.connections
        await until(lambda: protocol.transport.get_write_buffer_size() > 0)
        now_s = asyncio.get_running_loop().time()
        protocol.drop_if_stalled(now_s)
        assert not protocol.transport.is_closing()
        protocol.drop_if_stalled(now_s + http_protocol.WRITE_STALL_S + 1)
        assert protocol.transport.is_closing()
        await until(lambda: not running.server.connections)


@pytest.mark.usefixtures("hour")
@pytest.mark.parametrize("sent", [b"\r", get("/health/live")[:-2]], ids=["a blank line", "a head"])
async def test_an_idle_connection_is_closed_after_more_input(sent: bytes) -> None:
    """Input after a response does not stop the clock."""
    async with live() as running, connected(running) as client:
        client.send(get("/health/live"))
        await client.reply()
        client.send(sent)
        assert await client.closed()


async def test_a_slow_head_has_no_more_time_than_a_stalled_one() -> None:
    """The time for a head begins with its first byte."""
    async with live() as running, connected(running) as client:
        await until(lambda: len(running.server.connections) == 1)
        (protocol,) = running.server.connections
        client.send(b"G")
        await until(lambda: len(protocol.unparsed) == 1)
        began_s = asyncio.get_running_loop().time()
        client.send(b"ET / HTTP/1.1\r\n")
        await until(lambda: len(protocol.unparsed) > 1)
        protocol.drop_if_stalled(began_s + READ_STALL_S + 1e-6)
        assert await client.closed()


@pytest.mark.parametrize(
    "sent",
    [b"", get("/health/live"), post(HELLO), b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 12_000, b"HELLO\r\n\r\n"],
    ids=["silent", "page", "request", "endless head", "no HTTP"],
)
async def test_a_closed_connection_leaves_no_garbage(sent: bytes) -> None:
    """Its objects are freed at once: collecting those of a flood would stop the event loop for 30 ms each time."""
    async with live() as running:
        with without_collection():
            async with connected(running) as client:
                client.send(sent)
                await until(lambda: bool(running.server.connections))
                connection = weakref.ref(*running.server.connections)
                if sent:
                    await client.reply()
            await until(lambda: not running.server.connections)
            for _ in range(20):  # the callbacks of the closed transport
                await asyncio.sleep(0)
            assert connection() is None
