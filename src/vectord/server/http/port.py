"""Accepts the connections of one listening socket and ends them: idle and stalled ones, and all at the shutdown.

Not by `loop.create_server`, with which a connection cannot be refused before it has a transport, TLS handshakes are
neither counted nor bounded, a lack of file descriptors closes the connections of probes without a log line, and the
connections in the kernel's queue are reset when the server closes.

The addresses take turns: an address that opens hundreds of connections at once does not delay the connection of a probe
from another address.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable
from functools import partial

from starlette.types import ASGIApp

from vectord.config import ServerConfig
from vectord.housekeeping import Housekeeping
from vectord.server.admission.gate import client_address
from vectord.server.http.hardening.connection_limits import ConnectionLimits, ConnectionSlot
from vectord.server.http.hardening.http_protocol import HttpConnection, HttpService
from vectord.server.http.hardening.write_backpressure import PRESSED_STALL_S, WriteBackpressure
from vectord.server.http.listener import load_certificate, tls_context
from vectord.server.pipeline import Reload

BACKLOG = 2048  # connections that the kernel queues until they are accepted
HANDSHAKE_S = 10.0
ACCEPTS_PER_ITERATION = 32  # before other callbacks of the event loop run; as many as RESERVED
OPENED_PER_ITERATION = 8  # each leads to a request, which takes the event loop 0.5 ms
ATTEMPTS = 5  # iterations in which a connection may find a reserved slot free, before it is closed
PAUSE_S = 0.05  # after an accept without a free file descriptor
IDLE_DRAIN_S = 0.5  # idle connections stay open this long during shutdown, so that a request in flight gets its 503
CANCELLED_S = 1.0  # time to send the responses of cancelled requests
TICK_S = 0.02
CHECK_S = 1.0

_log = logging.getLogger("vectord.server")


class HttpPort:
    """Answers the connections of one socket with `app`, on the running event loop, from `open` until `close`."""

    def __init__(
        self,
        app: ASGIApp,
        config: ServerConfig,
        limits: ConnectionLimits,
        backpressure: WriteBackpressure,
        reload: Reload,
        every_second: Callable[[], object] = lambda: None,
    ) -> None:
        """Raises ConfigError for an invalid certificate."""
        self.limits = limits
        self.backpressure = backpressure
        self.service = HttpService(app, config.header_limit_bytes, limits)
        self.connections = self.service.connections
        self._tls = tls_context(config)
        if self._tls is not None:
            reload.on_begin(partial(load_certificate, config, self._tls))
        self._every_second = every_second
        self._housekeeping = Housekeeping("the check of the connections")
        self._queued: dict[str, deque[ConnectionSlot]] = {}  # by address, the next one first

    def open(self, listener: socket.socket) -> None:
        """listener: bound; `close` closes it. The event loop must have `add_reader`."""
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        listener.setblocking(False)
        listener.listen(BACKLOG)
        self._listen()
        self._checking = asyncio.create_task(self._check_always())

    # --- accepting --------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        """Called in each iteration of the event loop while the kernel has queued connections."""
        is_first = not self._queued
        for _ in range(ACCEPTS_PER_ITERATION):
            if not self._accept_one():
                break
        if is_first:  # an iteration earlier: under load, a probe waits for each one
            self._open_some()

    def _accept_one(self) -> bool:
        """Return whether more connections may be queued."""
        try:
            sock, (peer, *_) = self._listener.accept()
        except ConnectionError:  # the client has left
            return True
        except BlockingIOError:
            return False
        except OSError:  # no file descriptor is free
            self.limits.count_over("descriptors")
            self._loop.remove_reader(self._listener)
            self._loop.call_later(PAUSE_S, self._listen)
            return False
        sock.setblocking(False)  # before ConnectionLimits looks for input
        self._admit(peer, sock, ATTEMPTS)
        return True

    def _admit(self, peer: str, sock: socket.socket, attempts: int) -> None:
        slot = self.limits.admit(peer, sock)
        if slot is not None:
            self._queued.setdefault(client_address(peer), deque()).append(slot)
        elif attempts > 1:
            self._loop.call_soon(self._admit_again, peer, sock, attempts - 1)
        else:
            sock.close()

    def _admit_again(self, peer: str, sock: socket.socket, attempts: int) -> None:
        is_first = not self._queued
        self._admit(peer, sock, attempts)
        if is_first:
            self._open_some()

    def _open_some(self) -> None:
        """Open some connections: of each address in turn, the oldest first."""
        for _ in range(OPENED_PER_ITERATION):
            if not self._queued:
                return
            address, queued = next(iter(self._queued.items()))
            del self._queued[address]
            slot = queued.popleft()
            if queued:
                self._queued[address] = queued
            if slot.sock.fileno() >= 0:  # else it was closed for another connection
                slot.close = self._loop.create_task(self._open(slot)).cancel
        if self._queued:
            self._loop.call_soon(self._open_some)

    async def _open(self, slot: ConnectionSlot) -> None:
        """Give the connection a transport, which then reports the end of the connection."""
        create_protocol = partial(HttpConnection, self.service, slot)
        handshake_s = None if self._tls is None else HANDSHAKE_S
        try:
            await self._loop.connect_accepted_socket(
                create_protocol, slot.sock, ssl=self._tls, ssl_handshake_timeout=handshake_s
            )
        except (OSError, asyncio.CancelledError):  # a failed handshake, a client that has left, or an eviction
            self.limits.release(slot)
            slot.sock.close()

    # --- every second -----------------------------------------------------------------------------------------

    async def _check_always(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            self._housekeeping.run(self.check, self._loop.time())
            self._housekeeping.run(self._every_second)

    def check(self, now_s: float) -> None:
        """End stalled connections, and report."""
        for connection in list(self.connections):
            connection.drop_if_stalled(now_s)
        if self.backpressure.take_shortage():
            # Abort the readers that lag most, until half of the room is free or only faster ones are left.
            excess_bytes = self.backpressure.budget.held - self.backpressure.budget.limit // 2
            lagging = [each for each in self.connections if each.pace.lag_s(now_s) > PRESSED_STALL_S]
            for connection in sorted(lagging, key=lambda each: each.pace.lag_s(now_s), reverse=True):
                if excess_bytes <= 0:
                    break
                excess_bytes -= connection.pace.unread_bytes
                connection.transport.abort()
        self.limits.report(now_s)

    # --- the shutdown -----------------------------------------------------------------------------------------

    async def close(self, timeout_s: float) -> None:
        """Accept no more, answer what was accepted, and close idle connections; after `timeout_s`, all others too."""
        began_s = self._loop.time()
        self._loop.remove_reader(self._listener)
        is_first = not self._queued
        while self._accept_one():  # those in the kernel's queue would be reset
            pass
        self._listener.close()
        if is_first:
            self._open_some()
        while (drained_s := self._loop.time() - began_s) < timeout_s and self.limits.n_open:
            if drained_s >= IDLE_DRAIN_S:
                for connection in list(self.connections):
                    if connection.is_answered:
                        connection.transport.close()
            await asyncio.sleep(TICK_S)
        if tasks := list(self.service.tasks):
            _log.warning("shutdown timeout: cancelling requests", extra={"fields": {"requests": len(tasks)}})
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=CANCELLED_S)
        for connection in list(self.connections):
            connection.transport.close()
        self._checking.cancel()
