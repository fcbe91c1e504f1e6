"""The console's files, and when they are served."""

from __future__ import annotations

import gzip
import re
from importlib.resources import files

import pytest
from tests.server.asgi import call
from tests.server.fakes import EMBED, FakeEngine

from vectord.config import ServerConfig
from vectord.observability.metrics import Metrics
from vectord.schema import Gauges
from vectord.server.http.app import create_app

APP = create_app(FakeEngine(), [EMBED], ServerConfig(), Metrics("0"))
FOLDER = files("vectord").joinpath("server/pages/console")
NAMES = sorted(file.name for file in FOLDER.iterdir() if file.name != "index.html")
CHROME = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
LIMIT_BYTES = 200_000


@pytest.mark.parametrize(
    ("accept", "html"),
    [
        pytest.param(CHROME, True, id="a browser"),
        pytest.param("text/html;q=0.5, application/json;q=0.4", True, id="html before json"),
        pytest.param("text/html;q=0.4, application/json", False, id="json before html"),
        pytest.param("text/html;q=0", False, id="no html"),
        pytest.param("*/*", False, id="curl"),
        pytest.param("application/json", False, id="a program"),
        pytest.param("", False, id="nothing said"),
    ],
)
async def test_only_browsers_get_the_console_at_the_front_page(accept: str, html: bool) -> None:
    """Programs get JSON."""
    reply = await call(APP, "GET", "/", headers={"accept": accept} if accept else {})
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/html" if html else "application/json")
    if not html:
        assert reply.json["name"] == "vectord"
        assert "content-security-policy" not in reply.headers


async def test_the_page_loads_only_its_own_files() -> None:
    """No other host, nothing inline, and a policy that prevents both."""
    page = await call(APP, "GET", "/console")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    assert not re.search(rb"<script>|<style|\sstyle=|\son\w+=", page.body)
    for name in ["index.html", *NAMES]:
        text = FOLDER.joinpath(name).read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://", text), name
        assert "innerHTML" not in text, name


@pytest.mark.parametrize("name", NAMES)
async def test_a_file_has_an_etag(name: str) -> None:
    """With its type, compressed if accepted, and 304 for a client that has it."""
    plain = await call(APP, "GET", f"/console/{name}")
    packed = await call(APP, "GET", f"/console/{name}", headers={"accept-encoding": "gzip"})
    assert plain.body == gzip.decompress(packed.body) == FOLDER.joinpath(name).read_bytes()
    assert packed.headers["x-content-type-options"] == "nosniff"
    again = {"accept-encoding": "gzip", "if-none-match": packed.headers["etag"]}
    assert (await call(APP, "GET", f"/console/{name}", headers=again)).status == 304


def test_the_console_is_small() -> None:
    """All files together, uncompressed."""
    assert sum(len(FOLDER.joinpath(name).read_bytes()) for name in ["index.html", *NAMES]) < LIMIT_BYTES


async def test_the_figures_need_the_key() -> None:
    """The page does not."""
    metrics = Metrics("0")
    metrics.watch(_gauges, tuple)
    app = create_app(FakeEngine(), [EMBED], ServerConfig(api_key="secret"), metrics)
    assert (await call(app, "GET", "/console")).status == 200
    assert (await call(app, "GET", "/console/live")).status == 401
    assert (await call(app, "GET", "/console/live", headers={"x-api-key": "guess"})).status == 401
    shown = await call(app, "GET", "/console/live", headers={"authorization": "Bearer secret"})
    assert shown.status == 200
    assert shown.json["queued_tokens"] == {"interactive": 5, "bulk": 7}


async def test_without_metrics_there_are_no_figures() -> None:
    """404 with the reason."""
    reply = await call(create_app(FakeEngine(), [EMBED], ServerConfig()), "GET", "/console/live")
    assert reply.status == 404
    assert b"enable_metrics" in reply.body


def _gauges() -> Gauges:
    return Gauges(
        queued_tokens={"interactive": 5, "bulk": 7},
        wait_s=0.0,
        queued_embeds=2,
        max_wait_s=30.0,
        under_way=0,
        places=8,
        cached_texts=0,
        cache_bytes=0,
        cache_limit_bytes=0,
        memory_bytes={},
        devices={},
    )
