"""/docs: Swagger UI, and /redoc: ReDoc, from this package, so that both work without internet access.

The large files are stored compressed in swagger_ui/ and redoc/. Nothing is read before the first request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from vectord.products.common.dialect import Rendered
from vectord.server.http.routing import Page
from vectord.server.pages.static import SAFETY_HEADERS, policy, serve_file

_FOLDER = Path(__file__).parent
_FILES = ("swagger_ui/swagger-ui-bundle.js", "swagger_ui/swagger-ui.css", "redoc/redoc.standalone.js")

# Both set style attributes and draw icons as data: images. ReDoc's search runs in a worker that it makes from a blob.
HEADERS = {**SAFETY_HEADERS, **policy(style="'self' 'unsafe-inline'", img="'self' data:", worker="blob:")}

_HEAD = b"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>vectord</title>
<link rel="icon" href="data:,">
"""

_HTML = b"""<link rel="stylesheet" href="/docs/swagger-ui.css">
<style>
/* Swagger UI's own colours of these have a contrast below 4.5. */
.swagger-ui { overflow-wrap: anywhere; }
.swagger-ui .info .title small, .swagger-ui .download-contents { background: #595e65; }
.swagger-ui .info .title small.version-stamp { background: #1a7f4b; }
.swagger-ui .microlight span[style*="211, 99, 99"] { color: #ff9d94 !important; }
.light .swagger-ui :is(.btn.authorize, .info a) { color: #1a7f4b; border-color: #1a7f4b; }
.light .swagger-ui .btn.authorize svg { fill: #1a7f4b; }
.light .swagger-ui .opblock.opblock-post .opblock-summary-method { background: #1a7f4b; }
.light .swagger-ui :is(.opblock.opblock-get .opblock-summary-method, .btn.execute) { background: #1d5fbf; }
.light .swagger-ui .opblock.opblock-delete .opblock-summary-method { background: #b3261e; }
.light .swagger-ui .btn.cancel { color: #b3261e; border-color: #b3261e; }
.light .swagger-ui .parameter__in { color: #595e65; }
.dark-mode .swagger-ui :is(.header-col, .examples-select__section-label) { color: #e4e6e6; }
.dark-mode .swagger-ui .btn.cancel { color: #ff9d94 !important; border-color: #ff9d94 !important; }
</style>
</head>
<body>
<div id="swagger-ui"></div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script>
</body>
</html>
"""

# validatorUrl: the default is a public service, which would receive a request for every page view.
_START = b"""const dark = matchMedia("(prefers-color-scheme: dark)");
function applyTheme() {
  const chosen = localStorage.getItem("vectord-theme") ?? "auto"; // as chosen in the console
  const isDark = chosen === "auto" ? dark.matches : chosen === "dark";
  document.documentElement.className = isDark ? "dark-mode" : "light";
  document.documentElement.style.colorScheme = isDark ? "dark" : "light";
}
dark.addEventListener("change", applyTheme);
applyTheme();

const ui = SwaggerUIBundle({
  url: "/docs/openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  docExpansion: "none",
  defaultModelsExpandDepth: -1,
  defaultModelExpandDepth: 2,
  tryItOutEnabled: true,
  validatorUrl: null,
  onComplete() {
    const { tags } = ui.specSelectors.specJson().toJS();
    for (const tag of tags) if (tag["x-open"]) ui.layoutActions.show(["operations-tag", tag.name], true);
  },
});
"""

_REDOC = b"""</head>
<body>
<redoc spec-url="/docs/openapi.json" disable-google-font></redoc>
<script src="/docs/redoc.standalone.js"></script>
</body>
</html>
"""


def docs_pages() -> Sequence[Page]:
    """/redoc and /swagger-ui are the paths of servers that vectord replaces."""
    swagger_ui = partial(_content, _HEAD + _HTML, "text/html")
    return (
        Page(path="/docs", show=swagger_ui, summary="This API, to read and to try"),
        Page(path="/swagger-ui", show=swagger_ui, summary="The same as /docs"),
        Page(path="/redoc", show=partial(_content, _HEAD + _REDOC, "text/html"), summary="This API, to read"),
        Page(path="/docs/start.js", show=partial(_content, _START, "text/javascript"), summary=""),
        *(Page(path=f"/docs/{Path(file).name}", show=partial(_file, file), summary="") for file in _FILES),
    )


def _content(content: bytes, media_type: str, headers: Mapping[str, str]) -> Rendered:
    return Rendered(body=content, content_type=f"{media_type}; charset=utf-8", headers=HEADERS)


def _file(name: str, headers: Mapping[str, str]) -> Rendered:
    return serve_file(_FOLDER / name, headers, {**HEADERS, "cache-control": "public, max-age=3600"})
