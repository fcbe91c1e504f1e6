"""/docs and /redoc work without other hosts and run only their own scripts."""

from __future__ import annotations

import gzip
import re
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

import pytest
from tests.server.asgi import call
from tests.server.fakes import EMBED, FakeEngine

from vectord.config import ServerConfig
from vectord.server.http.app import create_app

APP = create_app(FakeEngine(), [EMBED], ServerConfig())
ASSETS = ["swagger_ui/swagger-ui-bundle.js", "swagger_ui/swagger-ui.css", "redoc/redoc.standalone.js"]


@pytest.mark.parametrize(("path", "file_count"), [("/docs", 3), ("/swagger-ui", 3), ("/redoc", 2)])
async def test_the_page_loads_only_files_of_this_server(path: str, file_count: int) -> None:
    """And its policy allows nothing else."""
    page = await call(APP, "GET", path)
    assert page.headers["content-type"].startswith("text/html")
    assert b"//" not in page.body
    named = re.findall(rb'(?:src|href|spec-url)="(/[^"]+)"', page.body)
    assert len(named) == file_count
    for name in named:
        assert (await call(APP, "GET", name.decode())).status == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert b"<script>" not in page.body


async def test_the_page_loads_this_servers_description() -> None:
    """And no public validator."""
    start = (await call(APP, "GET", "/docs/start.js")).body
    assert b'url: "/docs/openapi.json"' in start
    assert b"validatorUrl: null" in start


async def test_redoc_is_redoc() -> None:
    """It shows the same description as /docs."""
    page = (await call(APP, "GET", "/redoc")).body
    assert b'<redoc spec-url="/docs/openapi.json"' in page
    assert b"swagger" not in page


@pytest.mark.parametrize("asset", ASSETS)
async def test_vendored_files_match_their_readme(asset: str) -> None:
    """By the digest of the served bytes, with gzip and without."""
    folder, name = asset.split("/")
    readme = files("vectord.server.pages").joinpath(f"{folder}/README.md").read_text()
    packed = await call(APP, "GET", f"/docs/{name}", headers={"accept-encoding": "gzip"})
    plain = await call(APP, "GET", f"/docs/{name}")
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert gzip.decompress(packed.body) == plain.body
    assert f"| `{name}` | `{sha256(plain.body).hexdigest()}` |" in readme


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
async def test_a_browser_that_has_a_file_gets_304(encoding: str) -> None:
    """The tag depends on the encoding."""
    name = Path(ASSETS[0]).name
    first = await call(APP, "GET", f"/docs/{name}", headers={"accept-encoding": encoding})
    again = {"accept-encoding": encoding, "if-none-match": first.headers["etag"]}
    reply = await call(APP, "GET", f"/docs/{name}", headers=again)
    assert (reply.status, reply.body, reply.headers["etag"]) == (304, b"", first.headers["etag"])
    assert "content-length" not in reply.headers
    other = {**again, "accept-encoding": "identity" if encoding == "gzip" else "gzip"}
    assert (await call(APP, "GET", f"/docs/{name}", headers=other)).status == 200


def test_licences_are_included() -> None:
    """Those of Swagger UI and of ReDoc."""
    folder = files("vectord.server.pages").joinpath("swagger_ui")
    assert "Apache License" in folder.joinpath("LICENSE").read_text()
    assert "SmartBear" in folder.joinpath("NOTICE").read_text()
    assert folder.joinpath("swagger-ui-bundle.js.LICENSE.txt").is_file()
    redoc = files("vectord.server.pages").joinpath("redoc")
    assert "MIT License" in redoc.joinpath("LICENSE").read_text()
    assert redoc.joinpath("redoc.standalone.js.LICENSE.txt").is_file()
