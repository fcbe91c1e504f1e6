"""Refuses a request whose head can be read in two ways, before the rest of the request is read.

Proxies and servers that choose different readings disagree about the key, the length or the host of a request. Each
check needs the ASGI scope only, so it holds under every ASGI server; their parsers refuse further faults (two lengths,
a length next to chunks, folded lines, spaces before a colon).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Any

from vectord.errors import MalformedHead
from vectord.server.admission.gate import ENVOY_TIMEOUT_MS, EXPECT_FINGERPRINT, LANE, TIMEOUT_MS
from vectord.server.admission.keys import KEY_HEADERS

Headers = Sequence[tuple[str, str]]  # names in lower case

# Headers with one value each. Two of them would be two keys, two bodies, or two answers.
SINGLE = KEY_HEADERS | {
    *("host", "origin", "content-type", "content-length", "content-encoding", "transfer-encoding"),
    *(LANE, TIMEOUT_MS, EXPECT_FINGERPRINT, ENVOY_TIMEOUT_MS),
}

REPEATED = "The header {header} may be sent once."
INVALID_CODING = "Transfer-Encoding may be chunked only, in HTTP/1.1; compress a body with Content-Encoding."

_host = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]*)(?::\d{0,5})?")


def combined(headers: Headers) -> dict[str, str]:
    """The headers by name. Values of a repeated name are joined by a comma, as RFC 9110, 5.3 defines."""
    found = dict(headers)
    if len(found) < len(headers):
        found.clear()
        for name, value in headers:
            found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def check_head(scope: Mapping[str, Any], headers: Headers, by_name: Mapping[str, str]) -> None:
    """by_name: `combined(headers)`."""
    if len(by_name) < len(headers):
        names = [name for name, _ in headers]
        for name in SINGLE.intersection(names):
            if names.count(name) > 1:
                raise MalformedHead(REPEATED, header=name)
    version = scope.get("http_version")
    if version in ("0.9", "2.0"):  # HTTP/2 itself has the version "2"
        raise MalformedHead("This connection speaks HTTP/1.1 and HTTP/1.0.")
    host = by_name.get("host")
    if host is None:
        if version == "1.1":
            raise MalformedHead("A request of HTTP/1.1 needs the header Host.")
    elif host_name(host) is None:
        raise MalformedHead("The header Host must be a name or an address, with or without a port.")
    coding = by_name.get("transfer-encoding")
    if coding is not None and (version == "1.0" or coding.lower() != "chunked"):  # RFC 9112, 6.1: 1.0 has no chunks
        raise MalformedHead(INVALID_CODING)


@lru_cache(maxsize=256)
def host_name(host: str) -> str | None:
    """The name or address in the value of a Host header, in lower case and without its port; None if it is invalid."""
    match = _host.fullmatch(host)
    if match is None:
        return None
    name = match[1].lower()
    if not name.startswith("["):
        return name.removesuffix(".")
    try:
        return str(IPv6Address(name[1:-1]))
    except ValueError:
        return None
