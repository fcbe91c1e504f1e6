"""The console: a page of this package's own files at /console, and at / for browsers. Called through routing's pages.

The page and its files hold no secret and need no key; what they show is asked with the user's key. Files are compressed
when they are first asked for. Every address in them is relative, so that they work behind any prefix.
"""

from __future__ import annotations

import gzip
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

from vectord.errors import NoSuchRoute
from vectord.products.common.dialect import Rendered
from vectord.server.http.compression import accepts_gzip
from vectord.server.http.meter import Meter, then
from vectord.server.http.negotiation import MAX_ACCEPT_LENGTH, quality_of
from vectord.server.http.routing import Page

_FOLDER = Path(__file__).parent / "console"

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_NAMED_BY_PAGE = ("style.css", "main.js", "icon.svg")

# Everything from here, nothing inline.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SAFE = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # asked for again each time, and 304: a page never runs with another version's files
}
_NO_STORE = {"cache-control": "no-store"}


def console_pages(metrics: Meter | None, calls: Callable[[], Sequence[Mapping[str, Any]]]) -> Sequence[Page]:
    """metrics: None has no charts; calls: what the page can write down, asked once, when it is first looked at."""

    @cache
    def written() -> bytes:
        return orjson.dumps(calls())

    def show_calls(headers: Mapping[str, str]) -> Rendered:
        return Rendered(body=written())

    def show_live(headers: Mapping[str, str]) -> Rendered | Awaitable[Rendered]:
        return then(None if metrics is None else metrics.live(), drawn)

    def drawn(figures: Mapping[str, Any] | None) -> Rendered:
        if figures is None:
            raise NoSuchRoute("This server keeps no figures: the setting `enable_metrics` is off.")
        return Rendered(body=orjson.dumps(figures), headers=_NO_STORE)

    return (
        Page(path="/console", show=console, summary="Load, models and a playground, in a browser; / shows it, too"),
        *(Page(path=f"/console/{name}", show=partial(_file, name), summary="") for name in _names()),
        *(Page(path=f"/console/console/{name}", show=partial(_up, name), summary="") for name in _NAMED_BY_PAGE),
        Page(path="/console/calls", show=show_calls, summary=""),
        Page(path="/console/live", show=show_live, summary="", guarded=True),
    )


def console(headers: Mapping[str, str]) -> Rendered:
    return _file("index.html", headers)


def wants_console(headers: Mapping[str, str]) -> bool:
    """Whether a browser asks: text/html by name, and not after JSON. */* is a program's."""
    accept = headers.get("accept", "")[:MAX_ACCEPT_LENGTH]
    html = quality_of("text/html", accept)
    return html > 0 and html >= quality_of("application/json", accept)


def _names() -> Sequence[str]:
    return sorted(path.name for path in _FOLDER.iterdir() if path.suffix in _TYPES and path.suffix != ".html")


def _up(name: str, headers: Mapping[str, str]) -> Rendered:
    """Where /console/ with a slash at its end looks for what lies a folder above."""
    return Rendered(body=b"", status=307, headers={**_SAFE, "location": f"../{name}"})


def _file(name: str, headers: Mapping[str, str]) -> Rendered:
    """The file `name`, or 304 for a client that has it. The tag differs by encoding, as a strong one must."""
    packed = accepts_gzip(headers.get("accept-encoding"))
    tag = f'"{_digest(name)}{"" if packed else "-plain"}"'
    shown = {**_SAFE, "etag": tag, "vary": "accept, accept-encoding"}
    if tag in headers.get("if-none-match", ""):
        return Rendered(body=b"", status=304, headers=shown)
    content_type = f"{_TYPES[Path(name).suffix]}; charset=utf-8"
    if packed:
        return Rendered(body=_packed(name), content_type=content_type, headers={**shown, "content-encoding": "gzip"})
    return Rendered(body=_plain(name), content_type=content_type, headers=shown)


@cache
def _plain(name: str) -> bytes:
    return (_FOLDER / name).read_bytes()


@cache
def _packed(name: str) -> bytes:
    return gzip.compress(_plain(name), mtime=0)


@cache
def _digest(name: str) -> str:
    return sha256(_plain(name)).hexdigest()[:32]
