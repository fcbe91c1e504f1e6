"""Connections from the kernel's queue to a transport, and their end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import trustme
from tests.server.fakes import FakeEngine
from tests.server.live import Client, connected, live, post, until

from vectord.config import ServerConfig
from vectord.server.http import port
from vectord.server.http.hardening.connection_limits import ConnectionLimits, ConnectionSlot
from vectord.server.http.hardening.write_backpressure import WriteBackpressure
from vectord.server.http.listener import bind
from vectord.server.http.port import HttpPort
from vectord.server.pipeline import Reload

HELLO = {"input": "hello"}


async def test_queued_connections_are_answered_at_the_shutdown() -> None:
    """They are accepted before the port closes: closing it with connections in the queue would reset them."""
    async with live() as running:
        waiting = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(100)]
        for each in waiting:
            each.sendall(post(HELLO))
        running.stop()
        for each in waiting:
            client = Client(*await asyncio.open_connection(sock=each))
            assert (await client.reply()).status == 503
            client.close()


class Opened(asyncio.Protocol):
    """The protocol of connections whose addresses alone matter."""

    peers: list[str]

    def __init__(self, service: object, slot: ConnectionSlot) -> None:
        self.peers.append(slot.peer)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses of the connections, in the order in which they are opened."""
    Opened.peers = []
    monkeypatch.setattr(port, "HttpConnection", Opened)
    return Opened.peers


def any_port() -> HttpPort:
    async def app(*_: object) -> None: ...

    return HttpPort(app, ServerConfig(), ConnectionLimits(1000, 1000), WriteBackpressure(0), Reload())


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere 127.0.0.2 is no address of the machine")
async def test_addresses_take_turns(opened: list[str]) -> None:
    """A hundred connections of one address do not delay the connection of another that arrives after them."""
    with contextlib.ExitStack() as clients:
        listener = bind("127.0.0.1", 0)
        listener.listen(200)
        for address in ["127.0.0.2"] * 100 + ["127.0.0.1"]:
            client = socket.create_connection(listener.getsockname(), source_address=(address, 0))
            clients.enter_context(client)
        one = any_port()
        one.open(listener)
        await until(lambda: len(opened) == 101)
        await one.close(0)
    assert opened.index("127.0.0.1") < 100


async def test_a_request_that_arrives_during_the_shutdown_is_answered() -> None:
    """If its connection was accepted before, and has sent nothing or a part of a head."""
    engine = FakeEngine()
    async with live(engine) as running, connected(running) as silent, connected(running) as begun:
        request = post(HELLO)
        begun.send(request[:20])
        await until(lambda: any(connection.unparsed for connection in running.server.connections))
        await until(lambda: running.server.limits.n_open == 2)
        running.stop()
        await engine.draining.wait()
        silent.send(request)
        begun.send(request[20:])
        assert [(await client.reply()).status for client in (silent, begun)] == [503, 503]


async def test_addresses_of_one_network_take_one_turn(opened: list[str]) -> None:
    """An IPv6 client can use any address of its /64."""
    one = any_port()
    one.open(Queued([*(f"2001:db8::{number:x}" for number in range(20)), "2001:db8:1::1"]))
    await until(lambda: len(opened) == 21)
    await one.close(0)
    assert opened.index("2001:db8:1::1") == 1


class Queued(socket.socket):
    """A listener with connections from these addresses in its queue."""

    def __init__(self, peers: list[str]) -> None:
        super().__init__()
        self.bind(("127.0.0.1", 0))
        self.listen()
        self._client = socket.create_connection(self.getsockname())  # stays in the kernel's queue
        self._pairs = [(peer, *socket.socketpair()) for peer in peers]
        self._theirs: list[socket.socket] = []

    def accept(self) -> tuple[socket.socket, Any]:
        if not self._pairs:
            raise BlockingIOError
        peer, ours, theirs = self._pairs.pop(0)
        self._theirs.append(theirs)
        return ours, (peer, 0)

    def close(self) -> None:
        for each in (self._client, *self._theirs):
            each.close()
        super().close()


async def test_a_silent_tls_handshake_takes_a_place_and_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(port, "HANDSHAKE_S", 0.2)
    issued = trustme.CA().issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "chain.pem")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    files = {"tls_cert_file": str(tmp_path / "chain.pem"), "tls_key_file": str(tmp_path / "key.pem")}
    async with live(**files) as running, connected(running) as client:
        await until(lambda: running.server.limits.n_open == 1)
        assert await client.closed()
        await until(lambda: running.server.limits.n_open == 0)


async def test_a_lack_of_descriptors_ends(opened: list[str]) -> None:
    """Accepting continues after a pause."""
    one, exhausted = any_port(), ExhaustedListener(bind("127.0.0.1", 0))
    one.open(cast(socket.socket, exhausted))
    with socket.create_connection(exhausted.getsockname()):
        await until(lambda: len(opened) == 1)
    assert exhausted.failures == 0
    await one.close(0)


class ExhaustedListener:
    """A listener whose first accepts fail for want of descriptors."""

    def __init__(self, real: socket.socket) -> None:
        self._real = real
        self.failures = 3

    def accept(self) -> tuple[socket.socket, Any]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self._real.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
