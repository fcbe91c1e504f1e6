"""A real server and Chromium, once for this folder. Without Chromium the tests are skipped."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from tests.checkpoints.folders import write_sentence_model
from tests.checkpoints.small_hub import small_hub
from tests.real_server import running
from tests.server.pages.console.visit import ADMIN_KEY, HOSTILE, KEY, Visit

CHROMIUM = shutil.which("chromium")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP page.example 127.0.0.1",  # a name of somebody else that points to this machine
]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL: the default model, a tiny BGE-M3, and a reranker with markup for a name. It has read a text."""
    from tests.reference.reference_models import write_bge_m3, write_bge_reranker

    folder = tmp_path_factory.mktemp("console")
    tiny = [str(write_bge_m3(folder / "tiny-bge-m3")), str(write_bge_reranker(folder / HOSTILE))]
    with running(folder / "log", "all-MiniLM-L6-v2", *tiny, "--offline") as (url, _):
        httpx.post(f"{url}/v1/embeddings", json={"input": "a text"}).raise_for_status()
        yield url


@pytest.fixture(scope="session")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of a server with a key, an admin key and a hub, under a prefix."""
    folder: Path = tmp_path_factory.mktemp("locked")
    options = ("--api-key", KEY, "--admin-key", ADMIN_KEY, "--url-prefix", "/behind/proxy")
    with small_hub(write_sentence_model(folder / "repository")) as hub:
        cache = ("--hf-endpoint", hub.url, "--hf-home", str(folder / "hf"))
        with running(folder / "log", "all-MiniLM-L6-v2", *options, *cache) as (url, _):
            yield f"{url}/behind/proxy"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Playwright's own event loop counts as running until it is closed: no test of other folders must meet it."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: `python -m tests.programs` fetches it")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium: Browser, server: str) -> Iterator[Visit]:
    """The console for a new visitor, with all requests and console messages recorded."""
    with Visit.begun(chromium, server) as begun:
        yield begun


@pytest.fixture(scope="module")
def page(chromium: Browser, server: str) -> Iterator[Page]:
    """One page for all tests of a file: `use_tool` resets what they share."""
    with Visit.begun(chromium, server) as begun:
        begun.open()
        yield begun.page
