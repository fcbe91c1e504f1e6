"""/docs: Swagger UI from this package, so that it opens on a machine with no network. Called through routing's pages.

The two large files lie gzipped in swagger_ui/ and go out as they lie; they are inflated for a client that takes no
gzip. Nothing is read before it is first asked for.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from functools import cache, partial
from hashlib import sha256
from pathlib import Path

from vectord.products.common.dialect import Rendered
from vectord.server.http.compression import GZIP, accepts_gzip
from vectord.server.http.routing import Page

_FOLDER = Path(__file__).parent / "swagger_ui"

# Scripts from here only and none inline. Swagger UI writes style attributes and draws its icons as data: images.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_HTML = b"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>vectord</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/docs/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script>
</body>
</html>
"""

# validatorUrl: the default is a public service, which would be told of every page view.
_START = b"""SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  docExpansion: "list",
  defaultModelsExpandDepth: 0,
  validatorUrl: null
});
"""


def docs_pages() -> Sequence[Page]:
    script = partial(_asset, "swagger-ui-bundle.js", "text/javascript; charset=utf-8")
    style = partial(_asset, "swagger-ui.css", "text/css; charset=utf-8")
    return (
        Page(path="/docs", show=_page, summary="This API, to read and to try"),
        Page(path="/redoc", show=_page, summary="The same page"),
        Page(path="/swagger-ui", show=_page, summary="The same page"),
        Page(path="/docs/start.js", show=_start, summary=""),
        Page(path="/docs/swagger-ui-bundle.js", show=script, summary=""),
        Page(path="/docs/swagger-ui.css", show=style, summary=""),
    )


def _page(headers: Mapping[str, str]) -> Rendered:
    return Rendered(body=_HTML, content_type="text/html; charset=utf-8", headers=_SAFE)


def _start(headers: Mapping[str, str]) -> Rendered:
    return Rendered(body=_START, content_type="text/javascript; charset=utf-8", headers=_SAFE)


def _asset(name: str, content_type: str, headers: Mapping[str, str]) -> Rendered:
    """The file `name`, or 304 for a client that has it. The tag differs by encoding, as a strong one must."""
    packed = _read(name)
    plain = not accepts_gzip(headers.get("accept-encoding"))
    tag = f'"{_digest(name)}{"-plain" if plain else ""}"'
    shown = {**_SAFE, "etag": tag, "cache-control": "public, max-age=3600", "vary": "accept-encoding"}
    if tag in headers.get("if-none-match", ""):
        return Rendered(body=b"", status=304, headers=shown)
    if plain:
        return Rendered(body=zlib.decompress(packed, GZIP), content_type=content_type, headers=shown)
    return Rendered(body=packed, content_type=content_type, headers={**shown, "content-encoding": "gzip"})


_SAFE = {"content-security-policy": POLICY, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}


@cache
def _read(name: str) -> bytes:
    return (_FOLDER / f"{name}.gz").read_bytes()


@cache
def _digest(name: str) -> str:
    return sha256(_read(name)).hexdigest()[:32]
