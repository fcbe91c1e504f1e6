"""Which web pages may call this server, and by which names.

A browser sends requests of any page to any address that it reaches: to localhost, and, once a page's own name points
there (DNS rebinding), with that page's origin. Keys stop both. Without keys, `Origins.check` refuses pages that
`cors_allow_origin` does not list, and hosts that are neither an address nor a local name. The API of browsers for such
pages is CORS, which `with_cors` adds. handler.py and app.py call this on the event loop.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.types import ASGIApp

from vectord.config import ServerConfig
from vectord.errors import Forbidden
from vectord.server.http.hardening.head import host_name

FOREIGN_PAGE = (
    "A server without keys answers no page of another origin. List the page's origin in --cors-allow-origin, or set "
    "--api-key."
)
FOREIGN_HOST = (
    "A server without keys answers only by its address and local names. List this host as an origin, such as "
    "http://vectord.example.com, in --cors-allow-origin, or set --api-key."
)

# Top-level domains that are not in the public DNS, and Kubernetes's short name of a service.
LOCAL_DOMAINS = ("localhost", "local", "internal", "home.arpa", "lan", "home", "corp", "test", "svc")
LOOPBACK = ("127.0.0.1", "::1", "localhost")
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
RESOLVER_FILE = Path("/etc/resolv.conf")
PREFLIGHT_MAX_AGE_S = 600
NOTHING = "(?!)"  # a pattern that matches no text


class Origins:
    def __init__(self, config: ServerConfig, resolver_file: Path = RESOLVER_FILE) -> None:
        """resolver_file: names the domains of this machine's network, which a server on loopback does not need."""
        listed = [origin.lower().rstrip("/") for origin in config.cors_allow_origin]
        self.is_empty = not listed
        self.allows_all = "*" in listed
        self._is_open = not config.demands_key
        self._listed = re.compile("|".join(map(_pattern, listed)) or NOTHING)
        hosts = [_pattern(urlsplit(origin).hostname or "") for origin in listed if origin.startswith("http")]
        self._hosts = re.compile("|".join(hosts) or NOTHING)
        domains = () if config.host in LOOPBACK else network_domains(resolver_file)
        self._domains = tuple(f".{domain}" for domain in (*LOCAL_DOMAINS, *domains))
        self._names = {config.host.lower(), socket.gethostname().lower()}
        self._knows_host = lru_cache(maxsize=1024)(self.knows_host)

    def allows(self, origin: str) -> bool:
        """Whether `cors_allow_origin` lists the origin, or all of them."""
        return self.allows_all or self._listed.fullmatch(origin) is not None

    def check(self, scope: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        """headers: names in lower case, with a valid Host or none. Raises Forbidden on a server without keys."""
        if not self._is_open or self.allows_all:
            return
        host, origin, site = headers.get("host", ""), headers.get("origin"), headers.get("sec-fetch-site")
        # With TLS a browser has compared the certificate with the name.
        if scope.get("scheme") != "https" and not self._knows_host(host_name(host) or ""):
            raise Forbidden(FOREIGN_HOST)
        if site in ("same-origin", "none"):  # set by browsers, never by pages
            return
        if origin is None:
            is_foreign = site is not None and scope["method"] not in SAFE_METHODS
        else:
            is_same = bool(host) and origin.partition("://")[2] == host.lower()
            is_foreign = not is_same and not self.allows(origin)
        if is_foreign:
            raise Forbidden(FOREIGN_PAGE)

    def knows_host(self, name: str) -> bool:
        """Whether it is an address, a local name, or a name of this server. name: in lower case, without a port."""
        if "." not in name or name in self._names or name.endswith(self._domains):
            return True  # a name without a dot: a container, a Kubernetes service, a machine of the local network
        if name.rpartition(".")[2].isdecimal():  # a browser reads 127.1 as an address, too
            return True
        with suppress(ValueError):
            ip_address(name)
            return True
        return self._hosts.fullmatch(name) is not None

    def with_cors(self, app: ASGIApp, exposed_headers: Sequence[str], methods: Sequence[str]) -> ASGIApp:
        """`app`, callable by the listed pages. Preflight requests need no key."""
        if self.is_empty:
            return app
        from starlette.middleware.cors import CORSMiddleware  # noqa: PLC0415 - most servers do not need it

        return CORSMiddleware(
            app,
            allow_origins=("*",) if self.allows_all else (),
            allow_origin_regex=self._listed.pattern,
            allow_methods=methods,
            allow_headers=("*",),
            allow_private_network=True,
            expose_headers=exposed_headers,
            max_age=PREFLIGHT_MAX_AGE_S,
        )


def network_domains(resolver_file: Path) -> list[str]:
    """The domains that this machine's resolver appends to names; in a pod of Kubernetes its namespace, too, as in
    `vectord.NAMESPACE`. None if the file cannot be read."""
    try:
        lines = resolver_file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    words = [line.lower().split() for line in lines]
    domains = [domain.strip(".") for line in words if line[:1] in (["search"], ["domain"]) for domain in line[1:]]
    namespaces = [domain.partition(".svc.")[0] for domain in domains if ".svc." in domain]
    return [*(domain for domain in domains if "." in domain), *namespaces]


def _pattern(origin: str) -> str:
    """`*` stands for any characters of one part: a port, a name, or the rest of `app://*`."""
    return "[^/]*".join(map(re.escape, origin.split("*")))
