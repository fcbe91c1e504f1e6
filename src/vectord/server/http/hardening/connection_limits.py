"""Bounds the connections of one process, in all and for each address, and keeps some for probes.

listener.py's Acceptor asks for a place before it opens a connection; http_protocol.py reports requests and the end. A
connection beyond a limit still gets a place of the reserve: it may send one request, a probe is answered as usual and
any other request gets 429 or 503. If the reserve is full, its oldest connection that does not wait for an answer is
closed.

With trusted proxies, the connections of a proxy count for no address. Instead each of their requests counts for its
forwarded address until it is answered. On the event loop.
"""

from __future__ import annotations

import logging
import socket
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from pathlib import Path
from typing import Protocol, TypeAlias

from vectord.errors import ConfigError, RateLimited, Unavailable, VectordError
from vectord.observability.exchange import ConnectionsCounted

RESERVED = 32  # connections beyond the limits
RESERVED_S = 2.0  # for the complete head of their request
MAX_BY_DEFAULT = 16_384  # about 150 MB of idle connections
SHARE_OF_ADDRESS = 3 / 4  # of all connections, by default: the rest is for others
OTHER_FILES = 64  # descriptors for models, caches and other ports; an eighth of them if there are few
LEAST_BY_DEFAULT = 16
MIN_PATIENCE = 1 / 6  # of every timeout, when all connections are taken
LOG_EVERY_S = 10.0
RETRY_S = 1.0

OVER_LIMIT = "vectord.over_limit"  # in the ASGI scope: the error for any request but a probe
TOO_MANY = "The server has reached its limit of {limit} connections; try again."
TOO_MANY_OF_ADDRESS = "Your address has reached the limit of {limit} connections; close some, or try again."

Observer: TypeAlias = Callable[[ConnectionsCounted], None]

_log = logging.getLogger("vectord.server")


class Addresses(Protocol):
    """Implemented by Gate."""

    def is_proxy(self, peer: str) -> bool: ...

    def address(self, peer: str, forwarded: Iterable[str]) -> str: ...


@dataclass(slots=True, eq=False)
class Place:
    """One connection, from its accept to its end."""

    limits: ConnectionLimits
    peer: str
    sock: socket.socket
    address: str | None = None  # for which it counts
    error: VectordError | None = None  # it has a place of the reserve
    proxied: bool = False
    answering: bool = False
    answered: bool = False  # of a reserved place: what remains is the client's reading
    released: bool = False
    close: Callable[[], object] = field(default=lambda: None)

    @property
    def reserved(self) -> bool:
        return self.error is not None

    def begin_request(self, headers: Iterable[tuple[bytes, bytes]]) -> VectordError | None:
        """The error for any request but a probe. Only for reserved or proxied places."""
        self.answering = True
        return self.error or self.limits.count_forwarded(self, headers)

    def end_request(self) -> None:
        self.answering = False
        self.answered = True
        if self.proxied:
            self.limits.count_address(self, None)


class ConnectionLimits:
    def __init__(
        self,
        max_connections: int,
        max_per_address: int,
        addresses: Addresses | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.max_connections = max_connections
        self.max_per_address = max_per_address
        self._addresses = addresses
        self._observer = observer
        self._n_ordinary = 0
        self._reserved: dict[Place, None] = {}  # the oldest first
        self._by_address: Counter[str] = Counter()
        self._over: Counter[str] = Counter()  # by reason, since the last report
        self._unlogged: Counter[str] = Counter()
        self._logged_s = float("-inf")

    @property
    def n_open(self) -> int:
        return self._n_ordinary + len(self._reserved)

    def patience(self) -> float:
        """The share of each timeout that applies: 1 up to half of all connections, then falling."""
        return min(1.0, max(MIN_PATIENCE, 2 * (1 - self._n_ordinary / self.max_connections)))

    # --- connections ------------------------------------------------------------------------------------------

    def admit(self, peer: str, sock: socket.socket) -> Place | None:
        """A place for a new connection; None if even the reserve has none."""
        place = Place(self, peer, sock, proxied=self._addresses is not None and self._addresses.is_proxy(peer))
        address = None if place.proxied else _group(peer)
        if self._n_ordinary >= self.max_connections:
            place.error = Unavailable(TOO_MANY, retry_after_s=RETRY_S, limit=self.max_connections)
            self.count_over("connections")
        elif address is not None and self._by_address[address] >= self.max_per_address:
            place.error = self._too_many_of_address()
        if place.reserved:
            if len(self._reserved) >= RESERVED and not self._evict():
                return None
            self._reserved[place] = None
        else:
            self._n_ordinary += 1
            self.count_address(place, address)
        return place

    def release(self, place: Place) -> None:
        """Called once or more, at the end of the connection."""
        if place.released:
            return
        place.released = True
        self.count_address(place, None)
        if place.reserved:
            del self._reserved[place]
        else:
            self._n_ordinary -= 1

    def _evict(self) -> bool:
        """Close the oldest reserved connection that is answered, or that has sent no complete request."""
        for place in self._reserved:
            if place.answered or not (place.answering or _has_unread_input(place.sock)):
                self.release(place)
                place.close()
                return True
        return False

    # --- addresses --------------------------------------------------------------------------------------------

    def count_address(self, place: Place, address: str | None) -> None:
        """From now on `place` counts for `address`."""
        if place.address is not None:
            self._by_address[place.address] -= 1
            if not self._by_address[place.address]:
                del self._by_address[place.address]
        place.address = address
        if address is not None:
            self._by_address[address] += 1

    def count_forwarded(self, place: Place, headers: Iterable[tuple[bytes, bytes]]) -> VectordError | None:
        """Count a proxied request for its client, unless that client has reached its limit."""
        assert self._addresses is not None, "only a proxied place"
        forwarded = [value.decode("latin-1") for name, value in headers if name == b"x-forwarded-for"]
        address = _group(self._addresses.address(place.peer, forwarded))
        if self._by_address[address] >= self.max_per_address:
            return self._too_many_of_address()
        self.count_address(place, address)
        return None

    def _too_many_of_address(self) -> RateLimited:
        self.count_over("address")
        return RateLimited(TOO_MANY_OF_ADDRESS, retry_after_s=RETRY_S, limit=self.max_per_address)

    # --- reports ----------------------------------------------------------------------------------------------

    def count_over(self, reason: str) -> None:
        """reason: connections, address or descriptors."""
        self._over[reason] += 1

    def report(self, now_s: float) -> None:
        """Called every second: an event for the metrics, and a warning every LOG_EVERY_S while a limit is exceeded."""
        if self._observer is not None:
            self._observer(ConnectionsCounted(self.n_open, self.max_connections, dict(self._over)))
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


def configured_limits(max_connections: int | None, max_per_address: int | None) -> tuple[int, int]:
    """The limits in force: of all connections, of each address. Raises ConfigError without enough descriptors."""
    available = _available_descriptors()
    if max_connections is None:
        max_connections = min(MAX_BY_DEFAULT, max(LEAST_BY_DEFAULT, available))
    elif max_connections > available:
        raise ConfigError(
            f"--max-connections {max_connections}: the process has file descriptors for {max(0, available)} "
            "connections; raise the limit of open files (ulimit -n), or set fewer."
        )
    if max_per_address is None:
        max_per_address = max(1, int(max_connections * SHARE_OF_ADDRESS))
    return max_connections, max_per_address


def _available_descriptors() -> int:
    """Without those in use, those of the reserve, and those for other files."""
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


def _group(address: str) -> str:
    """Addresses that one client can choose from count together: a /64 of IPv6."""
    if ":" not in address:
        return address
    try:
        parsed = IPv6Address(address)
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Address(int(parsed) >> 64 << 64)) + "/64"
