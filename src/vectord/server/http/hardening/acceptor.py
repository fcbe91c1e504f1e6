"""Accepts the connections of a listening socket.

Replaces `loop.create_server`, with which a connection cannot be refused before it has a transport, TLS handshakes are
neither counted nor bounded, a lack of file descriptors closes the connections of probes without a log line, and the
connections in the kernel's queue are reset when the server closes.

The addresses take turns: an address that opens hundreds of connections at once does not delay the connection of a probe
from another address.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections import deque
from collections.abc import Callable
from functools import partial

from vectord.server.admission.gate import client_address
from vectord.server.http.hardening.connection_limits import ConnectionLimits, ConnectionSlot

BACKLOG = 2048  # connections that the kernel queues until they are accepted
HANDSHAKE_S = 10.0
ACCEPTS_PER_ITERATION = 32  # before other callbacks of the event loop run; as many as RESERVED
OPENED_PER_ITERATION = 8  # each leads to a request, which takes the event loop 0.5 ms
ATTEMPTS = 5  # iterations of the event loop, in which a reserved slot may become free
PAUSE_S = 0.05  # after an accept without a free file descriptor
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Acceptor:
    """Accepts connections on the running event loop, which must have `add_reader`."""

    def __init__(
        self,
        listener: socket.socket,
        create_protocol: Callable[[ConnectionSlot], asyncio.Protocol],
        limits: ConnectionLimits,
        tls: ssl.SSLContext | None,
    ) -> None:
        """listener: bound; closed by `close`."""
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._create_protocol = create_protocol
        self._limits = limits
        self._tls = tls
        self._queued: dict[str, deque[tuple[socket.socket, ConnectionSlot]]] = {}  # by address, the next one first
        self._opening: set[asyncio.Task[bool]] = set()
        listener.setblocking(False)
        listener.listen(BACKLOG)
        self._loop.add_reader(listener, self._accept)

    @property
    def is_opening(self) -> bool:
        """Whether accepted connections have no transport yet."""
        return bool(self._opening or self._queued)

    def close(self) -> None:
        """Accept the connections that the kernel has queued, and no more."""
        if self._listener.fileno() < 0:
            return
        self._loop.remove_reader(self._listener)
        while self._accept_one():
            pass
        self._listener.close()

    def _resume(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        is_first = not self._queued
        for _ in range(ACCEPTS_PER_ITERATION):
            if not self._accept_one():
                break
        if is_first:  # an iteration earlier: under load, a probe waits for each one
            self._open_some()

    def _accept_one(self) -> bool:
        """Return whether more connections may be queued."""
        try:
            sock, address = self._listener.accept()
        except ConnectionError:  # the client has left
            return True
        except OSError as problem:
            if problem.errno in EXHAUSTED:
                self._limits.count_over("descriptors")
                self._loop.remove_reader(self._listener)
                self._loop.call_later(PAUSE_S, self._resume)
            return False  # usually BlockingIOError
        sock.setblocking(False)  # before a later connection looks for input here, see ConnectionLimits.admit
        self._admit(sock, address[0], ATTEMPTS)
        return True

    def _admit(self, sock: socket.socket, peer: str, attempts: int) -> None:
        slot = self._limits.admit(peer, sock)
        if slot is not None:
            slot.close = sock.close
            if not self._queued:
                self._loop.call_soon(self._open_queued)
            self._queued.setdefault(client_address(peer), deque()).append((sock, slot))
        elif attempts > 1:
            self._loop.call_soon(self._admit, sock, peer, attempts - 1)
        else:
            sock.close()

    def _open_queued(self) -> None:
        self._open_some()
        if self._queued:
            self._loop.call_soon(self._open_queued)

    def _open_some(self) -> None:
        """Open some connections: of each address in turn, the oldest first."""
        for _ in range(OPENED_PER_ITERATION):
            if not self._queued:
                return
            address, queued = next(iter(self._queued.items()))
            del self._queued[address]
            sock, slot = queued.popleft()
            if queued:
                self._queued[address] = queued
            if not slot.released:  # else it was closed for another connection
                opening = self._loop.create_task(self._open(sock, slot))
                slot.close = opening.cancel
                self._opening.add(opening)
                opening.add_done_callback(partial(self._opened, sock, slot))

    async def _open(self, sock: socket.socket, slot: ConnectionSlot) -> bool:
        """Return whether the connection has a transport, which then reports the end of the connection."""
        protocol = self._create_protocol(slot)
        handshake_s = None if self._tls is None else HANDSHAKE_S
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(
                lambda: protocol, sock, ssl=self._tls, ssl_handshake_timeout=handshake_s
            )
        except OSError:  # a failed handshake, or a client that has left
            return False
        return True

    def _opened(self, sock: socket.socket, slot: ConnectionSlot, opening: asyncio.Task[bool]) -> None:
        self._opening.discard(opening)
        if opening.cancelled() or not opening.result():
            self._limits.release(slot)
            sock.close()
