"""Limits the connections of one process, in total and per address, and reserves some for probes. On the event loop.

port.py requests a slot for each connection that it accepts. http_protocol.py reports requests and ends. Above a limit,
a connection gets one of RESERVED slots. It may send one request: a probe is answered, any other request gets 429 or
503. If all reserved slots are taken, the oldest reserved connection that is not waiting for a response is closed.

A trusted proxy's connections do not count for its address. Instead, each of its requests counts for the forwarded
address until it is answered.
"""

from __future__ import annotations

import logging
import socket
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from vectord.errors import ConfigError, RateLimited, Unavailable, VectordError
from vectord.observability.exchange import ConnectionsCounted
from vectord.observability.log_stream import take_dropped
from vectord.server.admission.gate import Gate, client_address

RESERVED = 32  # connections above the limits
RESERVED_S = 2.0  # within which a reserved connection must send the head of its request
MAX_BY_DEFAULT = 16_384  # about 150 MB of idle connections
MAX_OF_GRPC = 1024  # a client needs one for all of its calls
SHARE_OF_ADDRESS = 3 / 4  # of all connections by default, so that one address cannot take all
OTHER_FILES = 64  # descriptors for models, caches and other ports; at most an eighth of all
MIN_BY_DEFAULT = 16
LOG_EVERY_S = 10.0
RETRY_S = 1.0

OVER_LIMIT = "vectord.over_limit"  # in the ASGI scope: the error for any request but a probe
TOO_MANY = "The server has reached its limit of {limit} connections; try again."
TOO_MANY_OF_ADDRESS = "Your address has reached the limit of {limit} connections; close some, or try again."

_log = logging.getLogger("vectord.server")


class ConnectionSlot(msgspec.Struct, eq=False):
    """The slot of one connection, from accept to close."""

    peer: str
    sock: socket.socket
    close: Callable[[], object]
    proxied: bool
    address: str | None = None  # counted for this address; None: for no address
    error: VectordError | None = None  # the limit that was reached, if the slot is reserved
    answering: bool = False  # its request has arrived
    answered: bool = False  # a part of the response is written; the client may not have read it yet


class ConnectionLimits:
    def __init__(
        self,
        max_connections: int,
        max_per_address: int,
        gate: Gate | None = None,
        observer: Callable[[ConnectionsCounted], None] | None = None,
    ) -> None:
        self.max_connections = max_connections
        self.max_per_address = max_per_address
        self._gate = gate
        self._observer = observer
        self._ordinary: set[ConnectionSlot] = set()
        self._reserved: dict[ConnectionSlot, None] = {}  # the oldest first
        self._by_address: Counter[str] = Counter()
        self._over: Counter[str] = Counter()  # by reason, since the last report
        self._unlogged: Counter[str] = Counter()
        self._logged_s = float("-inf")

    @property
    def n_open(self) -> int:
        return len(self._ordinary) + len(self._reserved)

    # --- connections ------------------------------------------------------------------------------------------

    def admit(self, peer: str, sock: socket.socket) -> ConnectionSlot | None:
        """The slot of a new connection; above a limit a reserved one, or None if all of these are in use."""
        slot = ConnectionSlot(peer, sock, sock.close, proxied=self._gate is not None and self._gate.is_proxy(peer))
        address = None if slot.proxied else client_address(peer)
        if len(self._ordinary) >= self.max_connections:
            slot.error = Unavailable(TOO_MANY, retry_after_s=RETRY_S, limit=self.max_connections)
            self.count_over("connections")
        elif address is not None and self._by_address[address] >= self.max_per_address:
            slot.error = self._too_many_of_address()
        if slot.error is None:
            self._ordinary.add(slot)
            self.count_address(slot, address)
            return slot
        if len(self._reserved) >= RESERVED:
            # The oldest that does not wait for a response.
            idle = (
                each for each in self._reserved if each.answered or not (each.answering or _has_unread_input(each.sock))
            )
            oldest = next(idle, None)
            if oldest is None:
                return None
            self.release(oldest)
            oldest.close()
        self._reserved[slot] = None
        return slot

    def release(self, slot: ConnectionSlot) -> None:
        """Called at the end of the connection; further calls have no effect."""
        self.count_address(slot, None)
        self._reserved.pop(slot, None)
        self._ordinary.discard(slot)

    def begin_request(self, slot: ConnectionSlot, headers: Iterable[tuple[bytes, bytes]]) -> VectordError | None:
        """The error for requests other than probes. Counts a proxied one for its client until it is answered."""
        slot.answering = True
        if slot.error is not None or not slot.proxied:
            return slot.error
        assert self._gate is not None, "it knows the proxies"
        forwarded = [value.decode("latin-1") for name, value in headers if name == b"x-forwarded-for"]
        address = self._gate.address(slot.peer, forwarded)
        if self._by_address[address] >= self.max_per_address:
            return self._too_many_of_address()
        self.count_address(slot, address)
        return None

    def count_address(self, slot: ConnectionSlot, address: str | None) -> None:
        """Count the connection for `address`, and no longer for its previous one."""
        if slot.address is not None:
            self._by_address[slot.address] -= 1
            if not self._by_address[slot.address]:
                del self._by_address[slot.address]
        slot.address = address
        if address is not None:
            self._by_address[address] += 1

    def _too_many_of_address(self) -> RateLimited:
        self.count_over("address")
        return RateLimited(TOO_MANY_OF_ADDRESS, retry_after_s=RETRY_S, limit=self.max_per_address)

    # --- reports ----------------------------------------------------------------------------------------------

    def count_over(self, reason: str) -> None:
        """Count a connection above a limit. reason: connections, address or descriptors."""
        self._over[reason] += 1

    def report(self, now_s: float) -> None:
        """Called every second: emit an event for the metrics; if a limit was exceeded, log every LOG_EVERY_S."""
        if self._observer is not None:
            self._observer(ConnectionsCounted(self.n_open, self.max_connections, dict(self._over), take_dropped()))
        self._unlogged += self._over
        self._over.clear()
        if self._unlogged and now_s - self._logged_s >= LOG_EVERY_S:
            self._logged_s = now_s
            address, connections = max(self._by_address.items(), key=lambda item: item[1], default=("", 0))
            fields = {
                **{f"over_{reason}": count for reason, count in self._unlogged.items()},
                "open": self.n_open,
                "max_connections": self.max_connections,
                "max_connections_per_address": self.max_per_address,
                "busiest_address": address,
                "connections_of_address": connections,
            }
            self._unlogged.clear()
            _log.warning("connections over the limit", extra={"fields": fields})


def configured_limits(
    max_connections: int | None, max_per_address: int | None, *, with_grpc: bool = False
) -> tuple[int, int]:
    """The limits in force, in total and per address. Raises ConfigError if there are too few file descriptors.

    with_grpc: the same process has a gRPC port, which may take `grpc_limit` of the file descriptors.
    """
    available = _available_descriptors() - (grpc_limit() if with_grpc else 0)
    if max_connections is None:
        max_connections = min(MAX_BY_DEFAULT, max(MIN_BY_DEFAULT, available))
    elif max_connections > available:
        raise ConfigError(
            f"--max-connections {max_connections}: the process has file descriptors for {max(0, available)} "
            "connections; raise the limit of open files (ulimit -n), or lower --max-connections."
        )
    if max_per_address is None:
        max_per_address = max(1, int(max_connections * SHARE_OF_ADDRESS))
    return max_connections, max_per_address


def grpc_limit() -> int:
    """The most connections of the gRPC port: as many as a quarter of the process's free file descriptors."""
    return min(MAX_OF_GRPC, max(1, _available_descriptors() // 4))


def _available_descriptors() -> int:
    """File descriptors for connections: all, less those in use, RESERVED, and OTHER_FILES."""
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return MAX_BY_DEFAULT
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return 2**31
    return limit - len(list(Path("/dev/fd").iterdir())) - RESERVED - min(OTHER_FILES, limit // 8)


def _has_unread_input(sock: socket.socket) -> bool:
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except OSError:  # nothing yet, or closed
        return False
