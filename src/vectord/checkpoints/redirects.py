"""Limits the redirects of a hub: they lead to public addresses, or to addresses of the same kind as the hub's own.

A hub redirects downloads to the hosts of a content delivery network. It must not make the server send requests to its
own machine or private network, unless the operator has named a hub there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv6Address, ip_address
from socket import IPPROTO_TCP, gaierror, getaddrinfo
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

Kind: TypeAlias = Literal["public", "private", "link-local", "loopback"]


class RefusedRedirect(Exception):
    """The redirect leads to an address that the hub must not reach through this server."""


@contextmanager
def refusing_redirects(session: Any, endpoint: str) -> Iterator[None]:
    """Check each request of the HTTP client `session` in the block. endpoint: the hub's URL, as the operator set it.

    The request raises RefusedRedirect. A name that cannot be resolved here is left to the client, or to its proxy.
    """
    own = urlsplit(endpoint).hostname or ""

    def check(request: Any) -> None:
        host = request.url.host
        if host == own:
            return
        for kind in _kinds(host) - {"public"} - _kinds(own):
            raise RefusedRedirect(f"the hub redirects to {host}, a {kind} address")

    hooks = session.event_hooks["request"]  # run before each request, redirected ones included
    hooks.append(check)
    try:
        yield
    finally:
        hooks.remove(check)


def _kinds(host: str) -> set[Kind]:
    """The kinds of all addresses of the host."""
    try:
        found = getaddrinfo(host, None, proto=IPPROTO_TCP)
    except (gaierror, UnicodeError):
        return set()
    return {_kind(str(address[0])) for *_, address in found}


def _kind(address: str) -> Kind:
    parsed: IPv4Address | IPv6Address = ip_address(address)
    if isinstance(parsed, IPv6Address):
        parsed = parsed.ipv4_mapped or parsed
    if parsed.is_loopback or parsed.is_unspecified:  # connections to 0.0.0.0 reach this machine
        return "loopback"
    if parsed.is_link_local:
        return "link-local"
    return "public" if parsed.is_global else "private"
