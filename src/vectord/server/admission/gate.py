"""Admits or refuses a request before its body is read: client address, rate limits, key.

The Gate is created once per process, by compose.py; server/pipeline.py calls it on the event loop. Rate limits come
first, so that a flood costs no key lookups and key guessing is limited, too.

Also reads the client of a request: its id, its address, and the options in its headers or gRPC metadata.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TypeAlias, cast

from vectord.config import ServerConfig
from vectord.errors import ConfigError, InvalidField
from vectord.products.common.dialect import Dialect, find_dialect, random_id
from vectord.products.common.inputs import read_fingerprint
from vectord.schema import Caller, Lane
from vectord.server.admission.buckets import TokenBuckets
from vectord.server.admission.keys import Key, Keys, KeysFile
from vectord.server.admission.rate_limit import RateLimits

Address: TypeAlias = IPv4Address | IPv6Address

REQUEST_ID = "x-request-id"
LANE = "x-vectord-lane"
EXPECT_FINGERPRINT = "x-vectord-expect-fingerprint"
TIMEOUT_MS = "x-vectord-timeout-ms"
ENVOY_TIMEOUT_MS = "x-envoy-expected-rq-timeout-ms"  # set by that proxy, which gives up after this time

INVALID_TIMEOUT = "{header} must be a whole number of milliseconds."

MAX_HOPS = 32  # addresses of X-Forwarded-For that are read, from its end
_MAX_TIMEOUT_DIGITS = 9
_safe_id = re.compile(r"[A-Za-z0-9._:/+=@~-]{1,128}")


class Gate:
    def __init__(
        self, config: ServerConfig, dialects: Sequence[Dialect] = (), buckets: TokenBuckets | None = None
    ) -> None:
        """dialects: those of the server; the imitated one decides whether a key needs the scheme Bearer. buckets: None
        creates this process's own, as `config` says.

        Raises ConfigError for an invalid keys file or an invalid proxy address.
        """
        file = KeysFile(config.api_keys_file) if config.api_keys_file is not None else None
        imitated = find_dialect(dialects, config.imitates)
        requires_scheme = imitated is not None and imitated.requires_scheme
        self.keys = Keys(config.accepted_keys, config.admin_key, file, requires_scheme=requires_scheme)
        self.limits = RateLimits(config, dialects, buckets)
        self._proxies = TrustedProxies(config.trusted_proxies)

    def address(self, peer: str, forwarded: Iterable[str]) -> str:
        """The client's `client_address`. peer: of the connection; forwarded: the values of X-Forwarded-For."""
        return client_address(self._proxies.client_of(peer, forwarded))

    def is_proxy(self, peer: str) -> bool:
        return self._proxies.trusts(peer)

    async def admit(
        self, address: str, key: Key | None, headers: Mapping[str, str], dialect: str | None = None, *, admin: bool
    ) -> None:
        """key: the result of `keys.lookup`; dialect: None if the body decides it; admin: for an admin route.

        Raises RateLimited, Unauthorized, Forbidden, NoSuchRoute.
        """
        limits = self.limits
        if key is not None or limits.everywhere is not None or dialect in limits.by_dialect:
            await limits.check(address, key, dialect)
        if admin:
            self.keys.require_admin(key, headers)
        elif key is None and not self.keys.is_open:
            self.keys.require(key, headers)


@lru_cache(maxsize=4096)
def client_address(address: str) -> str:
    """The address under which a client is limited. For IPv6 its /64 network, of which it can use any address."""
    parsed = _address(address) if ":" in address else None
    if not isinstance(parsed, IPv6Address):
        return address if parsed is None else str(parsed)
    return str(IPv6Address(int(parsed) >> 64 << 64)) + "/64"


def request_id(headers: Mapping[str, str]) -> str:
    """The client's own id if it has 1 to 128 letters, digits or ._:/+=@~- ; else 32 random hexadecimal digits."""
    given = headers.get(REQUEST_ID)
    if given is not None and _safe_id.fullmatch(given):
        return given
    return random_id()


def client_of(address: str, key: Key | None) -> str:
    """The name of a client in shares and limits: its key's, or its address."""
    return address if key is None or key.shared else key.name


def caller_of(
    headers: Mapping[str, str],
    address: str,
    key: Key | None = None,
    name: str | None = None,
    route: str = "",
    *,
    operator: bool = False,
) -> Caller:
    """headers: names in lower case; name: the request's id, None reads it from the headers; route: the template of the
    path, or the name of the gRPC method; operator: see Caller.

    A key of one client identifies it, otherwise its address does. A key's lane overrides the header's. Raises
    InvalidField for an invalid lane, fingerprint or timeout.
    """
    lane = headers.get(LANE)
    if lane not in (None, "interactive", "bulk"):
        raise InvalidField("{header} must be interactive or bulk.", field=LANE, header=LANE)
    name_of_timeout = TIMEOUT_MS if TIMEOUT_MS in headers else ENVOY_TIMEOUT_MS
    timeout = headers.get(name_of_timeout)
    if timeout is not None and not (timeout.isascii() and timeout.isdecimal() and len(timeout) <= _MAX_TIMEOUT_DIGITS):
        raise InvalidField(INVALID_TIMEOUT, field=name_of_timeout, header=name_of_timeout)
    return Caller(
        client=client_of(address, key),
        named=key is not None and not key.shared,
        lane=(key.lane if key is not None else None) or cast("Lane | None", lane),
        request_id=name or request_id(headers),
        route=route,
        models=None if key is None else key.models,
        operator=operator,
        deadline_s=None if timeout is None else time.monotonic() + int(timeout) / 1000,
        expect_fingerprint=read_fingerprint(headers.get(EXPECT_FINGERPRINT), EXPECT_FINGERPRINT),
    )


class TrustedProxies:
    """Proxies whose X-Forwarded-For is trusted; without any the header is ignored."""

    def __init__(self, trusted: Sequence[str]) -> None:
        """trusted: addresses and networks. Raises ConfigError for anything else."""
        try:
            self._networks = tuple(map(ip_network, trusted))
        except ValueError as problem:
            raise ConfigError(f"--trusted-proxies: expected addresses and networks; {problem}") from None

        def is_in_a_network(address: str) -> bool:
            parsed = _address(address)
            return parsed is not None and any(parsed in network for network in self._networks)

        self._is_trusted = lru_cache(maxsize=4096)(is_in_a_network)

    def trusts(self, address: str) -> bool:
        return bool(self._networks) and self._is_trusted(address)

    def client_of(self, peer: str, forwarded: Iterable[str]) -> str:
        """The last address that is not a trusted proxy's, of X-Forwarded-For followed by `peer`.

        peer: the address of the connection; forwarded: the header's values, in order. The search stops at text that is
        not an address: the proxy that sent it counts as the client. If all are trusted, the first address does.
        """
        if not self._networks:
            return peer
        client = peer
        for hop in reversed(",".join(forwarded).split(",")[-MAX_HOPS:]):  # values of the header may contain several
            if not self._is_trusted(client) or (address := _address(hop)) is None:
                break
            client = str(address)
        return client


def _address(text: str) -> Address | None:
    """Parses an address with or without a port. An IPv4-mapped IPv6 address becomes IPv4."""
    bare = text.strip()
    if bare.startswith("["):
        bare = bare[1:].partition("]")[0]
    elif bare.count(":") == 1:
        bare = bare.partition(":")[0]
    try:
        parsed = ip_address(bare)
    except ValueError:
        return None
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return mapped or parsed
