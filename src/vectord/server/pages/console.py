"""The console: a page of this package's files at /console, and at / for browsers.

The page and its files contain no secrets and need no key; the page requests its data with the user's key. All its
addresses are relative, so that it works under any prefix.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import orjson

from vectord.errors import NoSuchRoute
from vectord.observability.metrics import FigurePart
from vectord.products.common.dialect import Rendered
from vectord.server.http.negotiation import accepts_gzip, quality_of
from vectord.server.http.routing import Page
from vectord.server.pages.static import SAFETY_HEADERS, policy, serve_file

COMPRESSED_BYTES = 2**16  # an hour of eight busy models has 290 kB, compressed 10 kB
SHOWN_REQUESTS = 100  # of the recent ones

_FOLDER = Path(__file__).parent / "console"
_PAGE_FILES = ("style.css", "main.js", "icon.svg")  # those that index.html names
# no-cache: revalidated each time, so that a page never runs with another version's files. blob: shows images that the
# visitor has chosen.
_HEADERS = {**SAFETY_HEADERS, **policy(img="'self' blob:"), "cache-control": "no-cache"}

Source: TypeAlias = Callable[[FigurePart], Awaitable[Mapping[str, Any] | None]]


class Viewer(msgspec.Struct, frozen=True, kw_only=True):
    """The rights of a request's key. A named key sees its own requests, other callers those without a named key."""

    key: str | None = None  # its name; None: no key, or one that several clients use
    models: frozenset[str] | None = None  # the served names that it may see; None: all
    admin: bool = False  # sees the requests of all keys, and may load and unload models


def console_pages(
    source: Source | None,
    viewer: Callable[[Mapping[str, str]], Viewer],
    examples: Callable[[], Sequence[Mapping[str, Any]]],
    grafana_url: str | None = None,
) -> Sequence[Page]:
    """source: of the figures, None without metrics; viewer: from a request's headers; examples: called at the first
    request."""

    example_list = cache(lambda: Rendered(body=orjson.dumps(examples())))

    async def show(part: FigurePart, headers: Mapping[str, str]) -> Rendered:
        figures = None if source is None else await source(part)
        if figures is None:
            raise NoSuchRoute("This server collects no metrics: the setting `enable_metrics` is off.")
        seen = viewer(headers)
        shown = _VISIBLE[part](figures, seen)
        if part == "live":
            shown = {**shown, "admin": seen.admin, "grafana_url": grafana_url}
        body, sent = orjson.dumps(shown), {"cache-control": "no-store"}
        if len(body) >= COMPRESSED_BYTES and accepts_gzip(headers.get("accept-encoding")):
            body = await asyncio.to_thread(gzip.compress, body, 1)
            sent |= {"content-encoding": "gzip", "vary": "accept-encoding"}
        return Rendered(body=body, headers=sent)

    def redirect(name: str, headers: Mapping[str, str]) -> Rendered:
        """/console/ with a trailing slash resolves the page's relative addresses one folder too deep."""
        return Rendered(body=b"", status=307, headers={**_HEADERS, "location": f"../{name}"})

    files = sorted(path.name for path in _FOLDER.iterdir() if path.suffix in (".css", ".js", ".svg"))
    return (
        Page(path="/console", show=console, summary="Load, models and a playground, in a browser; also at /"),
        *(Page(path=f"/console/{name}", show=partial(_file, name), summary="") for name in files),
        *(Page(path=f"/console/console/{name}", show=partial(redirect, name), summary="") for name in _PAGE_FILES),
        Page(path="/console/calls", show=lambda headers: example_list(), summary=""),
        *(Page(path=f"/console/{part}", show=partial(show, part), summary="", guarded=True) for part in _VISIBLE),
    )


def console(headers: Mapping[str, str]) -> Rendered:
    return _file("index.html", headers)


def prefers_html(headers: Mapping[str, str]) -> bool:
    """Whether a browser sent the request: text/html by name, at least as high as JSON. Programs send */*."""
    accept = headers.get("accept")
    html = quality_of("text/html", accept)
    return html > 0 and html >= quality_of("application/json", accept)


def _file(name: str, headers: Mapping[str, str]) -> Rendered:
    return serve_file(_FOLDER / name, headers, _HEADERS)


# --- what a key may see ---------------------------------------------------------------------------------------


def visible_models(figures: Mapping[str, Any], viewer: Viewer) -> Mapping[str, Any]:
    """The figures without models that the viewer may not see."""
    if viewer.models is None:
        return figures
    return {**figures, "models": {name: sums for name, sums in figures["models"].items() if name in viewer.models}}


def visible_history(history: Mapping[str, Any], viewer: Viewer) -> Mapping[str, Any]:
    last = history["last"]
    return {
        **history,
        "steps": [visible_models(step, viewer) for step in history["steps"]],
        "last": None if last is None else visible_models(last, viewer),
    }


def visible_requests(recent: Mapping[str, Any], viewer: Viewer) -> Mapping[str, Any]:
    own = [each for each in recent["requests"] if viewer.admin or each["key"] == viewer.key]
    shown = []
    for each in own[:SHOWN_REQUESTS]:
        hides_model = viewer.models is not None and each["model"] not in viewer.models
        names = {"model": None if hides_model else each["model"], "key": each["key"] if viewer.admin else None}
        shown.append({**each, **names})
    return {"requests": shown}


_VISIBLE: Mapping[FigurePart, Callable[[Mapping[str, Any], Viewer], Mapping[str, Any]]] = {
    "live": visible_models,
    "history": visible_history,
    "requests": visible_requests,
}
