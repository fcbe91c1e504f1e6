"""Whose address a request comes from, where proxies stand in between. Called by gate.py, once a request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias

from vectord.errors import ConfigError

Network: TypeAlias = IPv4Network | IPv6Network
Address: TypeAlias = IPv4Address | IPv6Address

MAX_HOPS = 32  # of X-Forwarded-For that are looked at, from its end


class TrustedProxies:
    """Proxies whose X-Forwarded-For is believed; without any of them that header means nothing."""

    def __init__(self, trusted: Sequence[str]) -> None:
        """trusted: addresses and networks. Raises ConfigError for what is neither."""
        self._networks = tuple(map(_network, trusted))
        self._is_trusted = lru_cache(maxsize=4096)(self._lies_within)

    def client_of(self, peer: str, forwarded: Iterable[str]) -> str:
        """The last address that is no trusted proxy's, of X-Forwarded-For with `peer`, who connected, behind it.

        forwarded: the header's values, in order. What is no address there ends the way: whoever wrote that is the
        client. So is the furthest, where all are trusted.
        """
        if not self._networks:
            return peer
        client = peer
        for hop in _hops(forwarded):
            if not self._is_trusted(client) or (address := _address(hop)) is None:
                break
            client = str(address)
        return client

    def _lies_within(self, address: str) -> bool:
        parsed = _address(address)
        return parsed is not None and any(parsed in network for network in self._networks)


def _hops(forwarded: Iterable[str]) -> Iterator[str]:
    """From the last to the first. Values come as lines, each of which may hold several."""
    return reversed(",".join(forwarded).split(",")[-MAX_HOPS:])


def _address(text: str) -> Address | None:
    """With or without a port behind it; IPv4 in IPv6's clothes is IPv4."""
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


def _network(text: str) -> Network:
    try:
        return ip_network(text)
    except ValueError as problem:
        raise ConfigError(f"--trusted-proxies: expected addresses and networks, got {problem}") from None
