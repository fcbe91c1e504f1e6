"""Removes the offer of another protocol from a request's head.

Java's HTTP client offers h2c with its first request, with or without a body, and works without it. httptools assumes
that a request with such an offer has no body: it stops after the head and would read the body as the next request
(https://github.com/MagicStack/httptools, `cb_on_headers_complete` returns 1; in 0.6.4 to 0.9). The protocol
therefore parses the head a second time, without the offer.
"""

from __future__ import annotations

from collections.abc import Iterable

UPGRADE = b"upgrade"


def head_without_upgrade(method: bytes, url: bytes, version: str, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The head of a parsed request, without its Upgrade headers. headers: names in lower case."""
    lines = b"".join(b"%b: %b\r\n" % header for header in headers if header[0] != UPGRADE)
    return b"%b %b HTTP/%b\r\n%b\r\n" % (method, url, version.encode("ascii"), lines)
