"""Limits of connections, in all and for each address, and the reserve for probes. Over real sockets."""

from __future__ import annotations

import asyncio
import functools
import logging
import resource
import socket
from contextlib import AsyncExitStack

import pytest
from tests.server.fakes import FakeEngine
from tests.server.live import Live, ask, connected, get, live, post, until
from tests.server.process import process

from vectord.errors import ConfigError
from vectord.observability.metrics import Metrics
from vectord.server.http.hardening.connection_limits import (
    MAX_BY_DEFAULT,
    RESERVED,
    RESERVED_S,
    ConnectionLimits,
    configured_limits,
    grpc_limit,
)

HELLO = {"input": "hello"}
MANY = 1000


def in_all(count: int) -> dict[str, int]:
    """Settings that limit only all connections together."""
    return {"max_connections": count, "max_connections_per_address": MANY}


PROBES = ["/health", "/health/live", "/health/ready", "/ping", "/"]


async def silent(stack: AsyncExitStack, running: Live, count: int, n_open: int | None = None) -> None:
    """Opens connections that send nothing, and waits until the server has accepted them."""
    for _ in range(count):
        await stack.enter_async_context(connected(running))
    await until(lambda: running.server.limits.n_open == (n_open or count))


@pytest.mark.parametrize("limit", [in_all(5), {"max_connections_per_address": 5}], ids=["all", "address"])
async def test_probes_are_answered_while_all_connections_are_taken(limit: dict[str, int]) -> None:
    """Silent connections in any number do not prevent it."""
    async with AsyncExitStack() as stack, live(**limit) as running:
        await silent(stack, running, 5 + 3 * RESERVED, n_open=5 + RESERVED)
        for path in PROBES:
            reply = await ask(running, get(path))
            assert (reply.status, reply.headers["connection"]) == (200, "close"), path
        assert running.server.limits.n_open <= 5 + RESERVED


@pytest.mark.parametrize(
    ("limit", "status", "message"),
    [
        (in_all(5), 503, "The server has reached its limit of 5 connections; try again."),
        (
            {"max_connections_per_address": 5},
            429,
            "Your address has reached the limit of 5 connections; close some, or try again.",
        ),
    ],
    ids=["all", "address"],
)
async def test_other_requests_beyond_a_limit_are_refused(limit: dict[str, int], status: int, message: str) -> None:
    """In the product's form, before the key is checked or the body is read; pages that are not probes too."""
    engine = FakeEngine()
    async with AsyncExitStack() as stack, live(engine, api_key="secret", **limit) as running:
        await silent(stack, running, 5)
        reply = await ask(running, post(HELLO))
        assert (reply.status, reply.json["dialect"], reply.json["message"]) == (status, "first", message)
        assert reply.headers["connection"] == "close"
        assert (await ask(running, get("/docs"))).status == status
    assert engine.callers == []


async def test_places_are_free_again_after_a_disconnect() -> None:
    async with live(**in_all(2)) as running:
        for _ in range(5):
            async with connected(running) as one, connected(running) as two:
                for client in (one, two):
                    client.send(post(HELLO))
                    assert (await client.reply()).status == 200
            await until(lambda: running.server.limits.n_open == 0)
        assert not running.server.limits._by_address


async def test_a_reserved_connection_ends_without_a_request() -> None:
    """Within seconds, so that the reserve serves probes."""
    async with AsyncExitStack() as stack, live(**in_all(1)) as running:
        await silent(stack, running, 1)
        client = await stack.enter_async_context(connected(running))
        await until(lambda: running.server.limits.n_open == 2)
        await until(lambda: len(running.server.connections) == 2)
        running.server.check(asyncio.get_running_loop().time() + RESERVED_S + 0.1)
        assert await client.closed()


def test_a_client_that_does_not_read_its_answer_gives_its_place_to_a_probe() -> None:
    """Also if it continues to send."""
    limits, closed = ConnectionLimits(1, MANY), []
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"more")
        limits.admit("192.0.2.1", ours)
        for _ in range(RESERVED):
            slot = limits.admit("192.0.2.1", ours)
            assert slot is not None
            limits.begin_request(slot, [])
            slot.close = functools.partial(closed.append, slot)
        assert limits.admit("192.0.2.2", ours) is None
        slot.answered = True
        assert limits.admit("192.0.2.2", ours) is not None
    assert closed == [slot]


async def test_a_trusted_proxys_clients_are_limited() -> None:
    """By their forwarded addresses and the requests answered at a time; the proxy keeps its connections."""
    engine = FakeEngine(held=True)
    settings = {"max_connections_per_address": 2, "trusted_proxies": ("127.0.0.1",)}
    async with AsyncExitStack() as stack, live(engine, **settings) as running:
        clients = [await stack.enter_async_context(connected(running)) for _ in range(6)]
        flood, other = {"x-forwarded-for": "192.0.2.1"}, {"x-forwarded-for": "192.0.2.2"}
        for client in clients[:2]:
            client.send(post(HELLO, headers=flood))
            await engine.entered.acquire()
        clients[2].send(post(HELLO, headers=flood))
        refused = await clients[2].reply()
        assert (refused.status, refused.headers.get("connection")) == (429, None)
        clients[2].send(get("/health/live", flood))
        assert (await clients[2].reply()).status == 200
        clients[2].send(post(HELLO, headers=other))
        await engine.entered.acquire()
        engine.gate.set()
        for client in clients[:3]:
            assert (await client.reply()).status == 200
        assert not running.server.limits._by_address


def test_addresses_that_one_client_can_choose_count_together() -> None:
    """A /64 of IPv6; an IPv4 address is the same over both families."""
    limits = ConnectionLimits(10, 2)
    with socket.socket() as sock:

        def reserved(peer: str) -> bool:
            slot = limits.admit(peer, sock)
            return slot is None or slot.error is not None

        assert not reserved("2001:db8::1") and not reserved("2001:db8::2")
        assert reserved("2001:db8::3") and not reserved("2001:db8:0:1::1")
        assert not reserved("192.0.2.1") and not reserved("::ffff:192.0.2.1")
        assert reserved("192.0.2.1")


async def test_exceeded_limits_are_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """One warning in ten seconds, and metrics."""
    metrics = Metrics("0")
    async with AsyncExitStack() as stack, live(metrics=metrics, **in_all(3)) as running:
        await silent(stack, running, 3)
        for _ in range(4):
            assert (await ask(running, post(HELLO))).status == 503
        await until(lambda: running.server.limits.n_open == 3)
        caplog.set_level(logging.WARNING, "vectord.server")
        now_s = asyncio.get_running_loop().time()
        running.server.check(now_s)
        running.server.check(now_s + 9.0)
        assert (await ask(running, post(HELLO))).status == 503
        await until(lambda: running.server.limits.n_open == 3)
        running.server.check(now_s + 9.5)
        page, _ = await metrics.exposition()
    lines = [record for record in caplog.records if record.message == "connections over the limit"]
    assert [record.fields["over_connections"] for record in lines] == [4]  # type: ignore[attr-defined]
    assert b'vectord_connections_over_limit_total{reason="connections"} 5.0' in page
    assert b"\nvectord_connections 3.0" in page
    assert b"\nvectord_connections_limit 3.0" in page


def test_the_defaults_follow_the_file_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """They leave room for 1,000 connections from one address, for other files and for probes."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_048_576, 1_048_576))
    assert configured_limits(None, None) == (MAX_BY_DEFAULT, MAX_BY_DEFAULT * 3 // 4)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (2048, 2048))
    total, per_address = configured_limits(None, None)
    assert 1000 <= per_address < total <= 2048 - RESERVED - 64
    assert configured_limits(None, None, with_grpc=True)[0] <= total - 400
    assert 400 <= grpc_limit() <= total // 4 + 1
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    with pytest.raises(ConfigError, match=r"--max-connections 250: .* descriptors for \d+ connections.*ulimit -n"):
        configured_limits(250, None)


async def test_400_silent_connections_to_a_server_with_128_descriptors() -> None:
    """Every probe is answered."""
    with process(files=128) as (_, port):
        connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(400)]
        try:
            for _ in range(20):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(get("/health/live"))
                assert (await reader.read()).startswith(b"HTTP/1.1 200")
                writer.close()
        finally:
            for connection in connections:
                connection.close()
