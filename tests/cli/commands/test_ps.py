"""`vectord ps` and `vectord stop`: the models of a running server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pytest
from tests.real_server import running

from vectord.cli.main import run

MODEL = "sentence-transformers/all-MiniLM-L6-v2"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("server") / "log"
    with running(log, "--backend", "fake", "--api-key", "reader", "--admin-key", "boss") as (url, _):
        yield url


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_model_is_listed_until_it_is_stopped(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The server is found by the port and the keys of the settings, as if it ran with them. Ollama's tag is dropped."""
    settings = ["--port", str(urlsplit(url).port), "--admin-key", "boss"]
    assert run(["ps", *settings]) == 0
    headings, row = capsys.readouterr().out.splitlines()
    assert headings.split() == ["model", "gives", "width", "tokens", "dtype", "device", "state"]
    assert (row.split()[:2], row.split()[-1]) == ([MODEL, "dense"], "ready")
    assert run(["stop", "all-minilm:latest", *settings]) == 0
    assert capsys.readouterr().out == "all-minilm:latest is unloaded\n"
    assert run(["ps", "--json", *settings]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert run(["ps", "--all", "--json", *settings]) == 0
    assert [model["state"] for model in json.loads(capsys.readouterr().out)] == ["unloaded"]


def test_a_failed_model_is_listed_with_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By `ps` and by `models --url`."""
    (tmp_path / "empty").mkdir()
    with running(tmp_path / "log", "--backend", "fake", MODEL, str(tmp_path / "empty")) as (url, _):
        for words in (["ps", "--all"], ["models"]):
            assert run([*words, "--url", url]) == 0
            (row,) = (line for line in capsys.readouterr().out.splitlines() if "failed: " in line)
            assert "config.json" in row


def test_a_refused_stop_has_its_reason(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1 for an ordinary key and for an unknown model, with the server's message."""
    assert run(["stop", MODEL, "--url", url, "--token", "reader"]) == 1
    assert capsys.readouterr().err.startswith(f"vectord: {MODEL}: This key may not load, unload, pull or remove models")
    assert run(["stop", "bge-m3", "--url", url, "--token", "boss"]) == 1
    assert capsys.readouterr().err.startswith("vectord: bge-m3: ")


def test_a_wrong_key_is_reported(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ps", "--url", url, "--token", "wrong"]) == 2
    assert capsys.readouterr().err == f"vectord: {url}: The key is not one of this server's. (--token KEY)\n"


@contextmanager
def answering(status: int, content_type: str, body: str) -> Iterator[str]:
    """The URL of a server that gives every request this answer."""

    class Page(BaseHTTPRequestHandler):
        server_version, sys_version = "nginx", ""
        error_content_type, error_message_format = content_type, body

        def answer(self) -> None:
            self.send_error(status)

        do_GET = do_POST = do_DELETE = answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("status", [400, 431, 502, 504])
def test_an_error_before_vectord_is_shown_with_its_status(status: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a proxy, or of the HTTP parser: the URL may be right."""
    with answering(status, "text/plain", "Not now") as url:
        assert run(["stop", "a", "--url", url, "--token", "boss"]) == 1
    assert capsys.readouterr().err == f"vectord: a: {status} Not now\n"


@pytest.mark.parametrize(
    ("status", "content_type", "body"),
    [(200, "text/html", "<h1>404</h1>"), (404, "application/json", '{"error": {"message": "Not Found", "code": 404}}')],
    ids=["page", "json"],
)
@pytest.mark.parametrize("command", [["ps"], ["models"], ["stop", "a"], ["show", "a"], ["rm", "a"], ["pull", "a"]])
def test_another_product_at_the_url_is_named_in_one_line(
    command: list[str], status: int, content_type: str, body: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its status and content type, and without its page or message. A 200 of another product is no success."""

    with answering(status, content_type, body) as url:
        code = run([*command, "--url", url, "--token", "boss"])
    (line,) = capsys.readouterr().err.splitlines()
    assert code == (1 if "a" in command else 2)
    assert line.endswith(f"no vectord API at this URL: nginx answers with status {status} and {content_type}")
