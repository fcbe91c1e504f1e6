"""Pages of other origins in Chromium: what a profile allows works, and everything else reaches no model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser
from tests.real_server import running

JSON_HEADERS = {"content-type": "application/json", "authorization": "Bearer x", "x-vectord-lane": "bulk"}
FETCH = """
async ([url, headers, mode]) => {
    const init = {method: "POST", body: JSON.stringify({input: "hello"}), headers, mode};
    try {
        const response = await fetch(url + "/v1/embeddings", init);
        return [response.status, response.headers.get("x-vectord-tokens-kept")];
    } catch (problem) {
        return [problem.name, null];
    }
}"""


@pytest.fixture(scope="module")
def page_port() -> Iterator[int]:
    """Of an empty page."""

    class EmptyPage(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), EmptyPage) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield server.server_port
        server.shutdown()


def fetched(chromium: Browser, page_url: str, url: str, headers: dict[str, str], mode: str = "cors") -> Any:
    """Status and a header of the response as the page sees them, or the name of its error."""
    page = chromium.new_page()
    try:
        page.goto(page_url)
        return page.evaluate(FETCH, [url, headers, mode])
    finally:
        page.close()


def statuses(url: str) -> set[str]:
    """Of all requests to /v1/embeddings."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return {
        line.split('status="')[1][:3]
        for line in lines
        if line.startswith("vectord_requests_total{") and "/v1/embeddings" in line
    }


@pytest.mark.parametrize(
    ("profile", "allowed"), [("tei", {"local", "foreign"}), ("ollama", {"local"}), ("default", set())]
)
def test_a_page_gets_vectors_where_its_origin_is_allowed(
    profile: str, allowed: set[str], chromium: Browser, page_port: int, tmp_path: Path
) -> None:
    """With a key and vectord's own headers, which need a preflight; without, as every page may send. By default, a
    rebound name reads nothing, either."""
    pages = {"local": f"http://127.0.0.1:{page_port}/", "foreign": f"http://page.example:{page_port}/"}
    with running(tmp_path / "log", "--backend", "fake", "--host", "127.0.0.1", "--profile", profile) as (url, _):
        for name, page_url in pages.items():
            expected = [200, "3"] if name in allowed else ["TypeError", None]
            got = fetched(chromium, page_url, url, JSON_HEADERS)
            assert (got[0], got[1] is not None) == (expected[0], expected[1] is not None), name
            fetched(chromium, page_url, url, {"content-type": "text/plain"}, "no-cors")
        expected_statuses = ({"200"} if allowed else set()) | ({"403"} if allowed != set(pages) else set())
        assert statuses(url) == expected_statuses
        if not allowed:  # a name of the page's own that points to the server: same origin for the browser
            page = chromium.new_page()
            for path in ("/", "/v1/models", "/metrics"):
                response = page.goto(url.replace("127.0.0.1", "page.example") + path)
                assert response is not None
                assert response.status == 403, path
            page.close()
