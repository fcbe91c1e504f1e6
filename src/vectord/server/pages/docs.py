"""/docs: Swagger UI, and /redoc: ReDoc, from this package, so that both work without internet access.

The large files are stored compressed in swagger_ui/ and redoc/. Nothing is read before the first request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from vectord.products.common.dialect import Rendered
from vectord.server.http.routing import Page
from vectord.server.pages.static import policy, serve_file

_FOLDER = Path(__file__).parent
_VENDORED = ("swagger_ui/swagger-ui-bundle.js", "swagger_ui/swagger-ui.css", "redoc/redoc.standalone.js")

# Both set style attributes and draw icons as data: images. ReDoc's search runs in a worker that it makes from a blob.
HEADERS = policy(style="'self' 'unsafe-inline'", img="'self' data:", worker="blob:")
CACHED = {**HEADERS, "cache-control": "public, max-age=3600"}


def docs_pages() -> Sequence[Page]:
    """/redoc and /swagger-ui are the paths of servers that vectord replaces."""
    swagger_ui = partial(_file, "swagger_ui/index.html", HEADERS)
    return (
        Page(path="/docs", show=swagger_ui, summary="This API, to read and to try"),
        Page(path="/swagger-ui", show=swagger_ui, summary="The same as /docs"),
        Page(path="/redoc", show=partial(_file, "redoc/index.html", HEADERS), summary="This API, to read"),
        Page(path="/docs/start.js", show=partial(_file, "swagger_ui/start.js", HEADERS), summary=""),
        *(Page(path=f"/docs/{Path(name).name}", show=partial(_file, name, CACHED), summary="") for name in _VENDORED),
    )


def _file(name: str, headers: Mapping[str, str], request: Mapping[str, str]) -> Rendered:
    return serve_file(_FOLDER / name, request, headers)
