"""The console's files, and when they are served."""

from __future__ import annotations

import gzip
import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from tests.keys import entry, keys_file
from tests.observability.test_server_metrics import gauges
from tests.server.asgi import call
from tests.server.fakes import EMBED, FakeEngine

from vectord.config import ServerConfig
from vectord.engine.events import RequestEnded
from vectord.observability.exchange import Exchange
from vectord.observability.metrics import Metrics
from vectord.schema import Caller
from vectord.server.http.app import create_app

APP = create_app(FakeEngine(), [EMBED], ServerConfig(), Metrics("0"))
FOLDER = files("vectord").joinpath("server/pages/console")
NAMES = sorted(file.name for file in FOLDER.iterdir() if file.name != "index.html")
CHROME = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"


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


async def test_a_file_has_an_etag() -> None:
    """With its type, compressed if accepted, and 304 for a client that has it."""
    for name in NAMES:
        plain = await call(APP, "GET", f"/console/{name}")
        packed = await call(APP, "GET", f"/console/{name}", headers={"accept-encoding": "gzip"})
        assert plain.body == gzip.decompress(packed.body) == FOLDER.joinpath(name).read_bytes(), name
        assert packed.headers["x-content-type-options"] == "nosniff", name
        again = {"accept-encoding": "gzip", "if-none-match": packed.headers["etag"]}
        assert (await call(APP, "GET", f"/console/{name}", headers=again)).status == 304, name


@pytest.mark.parametrize(("accept", "encoding"), [("gzip", "gzip"), ("identity", None)])
async def test_a_long_history_is_compressed(accept: str, encoding: str | None) -> None:
    """For clients that accept it."""
    metrics = Metrics("0")
    metrics.watch(gauges, tuple)
    for _ in range(300):
        metrics.activity.record(metrics.live_figures(gauges()))
    app = create_app(FakeEngine(), [EMBED], ServerConfig(), metrics)
    reply = await call(app, "GET", "/console/history", headers={"accept-encoding": accept})
    assert reply.headers.get("content-encoding") == encoding
    body = gzip.decompress(reply.body) if encoding else reply.body
    assert len(json.loads(body)["steps"]) == 299


async def test_without_metrics_there_are_no_figures() -> None:
    """404 with the reason."""
    reply = await call(create_app(FakeEngine(), [EMBED], ServerConfig()), "GET", "/console/live")
    assert reply.status == 404
    assert b"enable_metrics" in reply.body


# --- what a key may see ---------------------------------------------------------------------------------------


@pytest.fixture
def shared(tmp_path: Path) -> Starlette:
    """An app of three keys; "ann" may use one of its two models. Each has sent a request to each model."""
    file = keys_file(tmp_path, entry("ann", models='["fake-model"]'), entry("ben"), entry("root", admin="true"))
    metrics = Metrics("0")
    metrics.watch(gauges, tuple)
    app = create_app(FakeEngine(), [EMBED], ServerConfig(api_keys_file=file), metrics)
    metrics.activity.record(metrics.live_figures(gauges()))
    for key in ("ann", "ben"):
        for model in ("fake-model", "secret-model"):
            metrics.observe(RequestEnded(caller=Caller(client=key, named=True), operation="embed", model=model))
            metrics.observe(
                Exchange(
                    method="POST",
                    dialect="d",
                    route="/r",
                    status=200,
                    request_id="",
                    began_s=0,
                    ended_s=1,
                    model=model,
                    key=key,
                )
            )
    metrics.activity.record(metrics.live_figures(gauges()))
    return app


async def shown_to(app: Starlette, key: str, part: str) -> Any:
    reply = await call(app, "GET", f"/console/{part}", headers={"authorization": f"Bearer {key}"})
    assert reply.status == 200
    return reply.json


@pytest.mark.parametrize("part", ["live", "history", "requests"])
async def test_no_figures_without_a_key(shared: Starlette, part: str) -> None:
    """401 for a missing and for an unknown key. The page needs none."""
    assert (await call(shared, "GET", "/console")).status == 200
    assert (await call(shared, "GET", f"/console/{part}")).status == 401
    assert (await call(shared, "GET", f"/console/{part}", headers={"x-api-key": "guess"})).status == 401


@pytest.mark.parametrize("part", ["live", "history", "requests"])
async def test_a_key_sees_its_models_only(shared: Starlette, part: str) -> None:
    """In sums, in the history, and in its own requests; and no name of another key."""
    seen = json.dumps(await shown_to(shared, "ann", part))
    assert "fake-model" in seen
    assert "secret-model" not in seen
    assert "ben" not in seen
    assert "secret-model" in json.dumps(await shown_to(shared, "root", part))


async def test_a_key_sees_its_own_requests(shared: Starlette) -> None:
    """An admin key those of all keys, with their names."""
    own = (await shown_to(shared, "ben", "requests"))["requests"]
    assert [each["model"] for each in own] == ["secret-model", "fake-model"]
    assert {each["key"] for each in own} == {None}
    everyone = (await shown_to(shared, "root", "requests"))["requests"]
    assert [each["key"] for each in everyone] == ["ben", "ben", "ann", "ann"]


async def test_the_page_learns_whether_its_key_may_load_models(shared: Starlette) -> None:
    """To show the buttons."""
    assert [(await shown_to(shared, key, "live"))["admin"] for key in ("ann", "root")] == [False, True]


async def test_the_console_links_to_the_configured_board() -> None:
    """Of Grafana."""
    metrics = Metrics("0")
    metrics.watch(gauges, tuple)
    app = create_app(FakeEngine(), [EMBED], ServerConfig(grafana_url="https://grafana/d/vectord"), metrics)
    assert (await call(app, "GET", "/console/live")).json["grafana_url"] == "https://grafana/d/vectord"
