"""The console: a page of this package's files at /console, and at / for browsers.

The page and its files contain no secrets and need no key; the page requests its data with the user's key. All its
addresses are relative, so that it works under any prefix.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import orjson

from vectord.errors import NoSuchRoute
from vectord.products.common.dialect import Rendered
from vectord.server.http.negotiation import quality_of
from vectord.server.http.routing import Page
from vectord.server.pages.static import SAFETY_HEADERS, policy, serve_file

NO_FIGURES = "This server collects no metrics: the setting `enable_metrics` is off."

_FOLDER = Path(__file__).parent / "console"
_PAGE_FILES = ("style.css", "main.js", "icon.svg")  # those that index.html names
# no-cache: revalidated each time, so that a page never runs with another version's files.
_HEADERS = {**SAFETY_HEADERS, **policy(), "cache-control": "no-cache"}

Live = Callable[[], Mapping[str, Any] | Awaitable[Mapping[str, Any] | None] | None]


def console_pages(live: Live | None, examples: Callable[[], Sequence[Mapping[str, Any]]]) -> Sequence[Page]:
    """live: the figures of the charts, None without metrics; examples: called at the first request."""

    @cache
    def example_list() -> bytes:
        return orjson.dumps(examples())

    def show_examples(headers: Mapping[str, str]) -> Rendered:
        return Rendered(body=example_list())

    async def show_live(headers: Mapping[str, str]) -> Rendered:
        figures = None if live is None else live()
        if isinstance(figures, Awaitable):
            figures = await figures
        if figures is None:
            raise NoSuchRoute(NO_FIGURES)
        return Rendered(body=orjson.dumps(figures), headers={"cache-control": "no-store"})

    files = sorted(path.name for path in _FOLDER.iterdir() if path.suffix in (".css", ".js", ".svg"))
    return (
        Page(path="/console", show=console, summary="Load, models and a playground, in a browser; also at /"),
        *(Page(path=f"/console/{name}", show=partial(_file, name), summary="") for name in files),
        *(Page(path=f"/console/console/{name}", show=partial(_redirect, name), summary="") for name in _PAGE_FILES),
        Page(path="/console/calls", show=show_examples, summary=""),
        Page(path="/console/live", show=show_live, summary="", guarded=True),
    )


def console(headers: Mapping[str, str]) -> Rendered:
    return _file("index.html", headers)


def prefers_html(headers: Mapping[str, str]) -> bool:
    """Whether a browser sent the request: text/html by name, at least as high as JSON. Programs send */*."""
    accept = headers.get("accept")
    html = quality_of("text/html", accept)
    return html > 0 and html >= quality_of("application/json", accept)


def _redirect(name: str, headers: Mapping[str, str]) -> Rendered:
    """/console/ with a trailing slash resolves the page's relative addresses one folder too deep."""
    return Rendered(body=b"", status=307, headers={**_HEADERS, "location": f"../{name}"})


def _file(name: str, headers: Mapping[str, str]) -> Rendered:
    return serve_file(_FOLDER / name, headers, _HEADERS)
