"""Who calls, from a call's metadata: the same names as HTTP's headers have. Called by services.py for every call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import unquote


def headers_of(metadata: Iterable[tuple[str, str | bytes]]) -> Mapping[str, str]:
    """Names in lower case, values as latin-1, as HTTP's come; without binary ones. Of one that comes twice the last
    counts."""
    return {name: value.encode().decode("latin-1") for name, value in metadata if isinstance(value, str)}


def forwarded_of(metadata: Iterable[tuple[str, str | bytes]]) -> list[str]:
    """What proxies say of whom they ask for, in order."""
    return [value for name, value in metadata if name == "x-forwarded-for" and isinstance(value, str)]


def address_of(peer: str) -> str:
    """Of "ipv4:127.0.0.1:50000" as over HTTP, without scheme, port and brackets: one client's calls and requests share
    one queue."""
    scheme, _, rest = peer.partition(":")
    return unquote(rest).rpartition(":")[0].strip("[]") if scheme in ("ipv4", "ipv6") else peer
