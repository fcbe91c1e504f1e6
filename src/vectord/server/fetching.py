"""Gets files from public addresses of the internet, by URLs that clients choose. media_urls.py calls it.

A host's name is resolved here, all its addresses are checked, and the connection goes to one of those: a name cannot
have another address between check and use. Redirects are checked like the first URL, and stay at its host.

Runs on the event loop; names are resolved in threads of its own. Imports httpx, so only servers that fetch import it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx

from vectord import __version__
from vectord.errors import InvalidField

MAX_URL_CHARACTERS = 8192
MAX_REDIRECTS = 3
RESOLVERS = 4  # threads: a slow name server delays other URLs alone
HEADERS = {"accept": "image/*, application/pdf", "accept-encoding": "identity", "user-agent": f"vectord/{__version__}"}
# Of the IETF's protocols. Older versions of Python call most of them global; a cloud's metadata were at 192.0.0.192.
PROTOCOLS_4 = ipaddress.ip_network("192.0.0.0/24")
UNICAST_6 = ipaddress.ip_network("2000::/3")  # the global addresses of IPv6 in use


def is_public(address: str) -> bool:
    """Whether anybody's client could reach it: not private, local, reserved, multicast, or IPv4 in a tunnel of IPv6."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is None:
        tunnelled = found.sixtofour is not None or found.teredo is not None
        return found in UNICAST_6 and found.is_global and not tunnelled
    four = found if isinstance(found, ipaddress.IPv4Address) else found.ipv4_mapped
    return four is not None and four.is_global and not four.is_multicast and four not in PROTOCOLS_4


def resolve(host: str, port: int) -> Sequence[str]:
    """The addresses of a name, the best first. Raises OSError, or UnicodeError."""
    return [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


class Fetcher:
    """One per process. Its errors lack the field of the URL, and say nothing of what the host sent."""

    def __init__(
        self,
        hosts: Collection[str],
        resolve: Callable[[str, int], Sequence[str]] = resolve,
        is_allowed: Callable[[str], bool] = is_public,
    ) -> None:
        """hosts: their names, or * for every host. is_allowed: of an address."""
        self._hosts = frozenset(host.lower() for host in hosts)
        self._resolve = resolve
        self._is_allowed = is_allowed
        self._resolvers = ThreadPoolExecutor(RESOLVERS, thread_name_prefix="vectord-resolve")
        self._tls = httpx.create_ssl_context()

    async def fetch(self, url: str, take: Callable[[int], None]) -> bytes:
        """The file. take: called with the size of each piece of it; may raise. Raises InvalidField."""
        target = first = self._checked(url)
        for _ in range(1 + MAX_REDIRECTS):
            found = await self._get(target, take)
            if isinstance(found, bytes):
                return found
            target = self._checked(str(found))
            if target.raw_host != first.raw_host:
                raise InvalidField("{field} has a URL that leads to another host, which is not fetched.")
        raise InvalidField("{field} has a URL with more than {limit} redirects.", limit=MAX_REDIRECTS)

    def _checked(self, url: str) -> httpx.URL:
        try:
            target = httpx.URL(url if len(url) <= MAX_URL_CHARACTERS else "")
            name = target.host.lower().rstrip(".")
        except (httpx.InvalidURL, UnicodeError):  # UnicodeError: half a character, or a name that IDNA does not decode
            target, name = httpx.URL(), ""
        has_place = bool(target.raw_host) and (target.port is None or 0 < target.port < 2**16)
        if target.scheme not in ("http", "https") or not has_place or target.userinfo:
            template = "{field} must be an http or https URL without a user's name, of at most {limit} characters."
            raise InvalidField(template, limit=MAX_URL_CHARACTERS)
        if "*" not in self._hosts and name not in self._hosts:
            raise InvalidField("{field} has a URL of a host from which this server fetches nothing.")
        return target

    async def _get(self, target: httpx.URL, take: Callable[[int], None]) -> bytes | httpx.URL:
        """The file, or where the host redirects to."""
        host = target.raw_host.decode("ascii")
        address = await self._address(host, target.port or (443 if target.scheme == "https" else 80))
        headers = {**HEADERS, "host": target.netloc.decode("ascii")}
        # A client for each: on a connection of another one, the certificate of another name was checked.
        client = httpx.AsyncClient(verify=self._tls, trust_env=False, headers=headers)
        at_address = target.copy_with(host=address)
        try:
            async with client, client.stream("GET", at_address, extensions={"sni_hostname": host}) as reply:
                if reply.has_redirect_location:
                    return target.join(reply.headers["location"])
                if reply.status_code != httpx.codes.OK:
                    template = "{field} has a URL whose host answered with status {given}."
                    raise InvalidField(template, given=reply.status_code)
                pieces = []
                async for piece in reply.aiter_raw():
                    take(len(piece))
                    pieces.append(piece)
                return b"".join(pieces)
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as problem:  # UnicodeError: of a redirect, as above
            raise InvalidField("{field} has a URL whose host sent no complete answer.") from problem

    async def _address(self, host: str, port: int) -> str:
        try:
            loop = asyncio.get_running_loop()
            addresses = await loop.run_in_executor(self._resolvers, self._resolve, host, port)
        except (OSError, UnicodeError):
            addresses = ()
        if not addresses or not all(map(self._is_allowed, addresses)):
            raise InvalidField("{field} has a URL whose host has no address, or one that is not public.")
        return addresses[0]
