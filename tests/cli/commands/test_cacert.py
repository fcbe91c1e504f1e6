"""Certificates of servers: every command with --url trusts the same authorities, and says which one is missing."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import trustme

from vectord.cli.main import run
from vectord.client import Client
from vectord.client.errors import ServerFailed

COMMANDS = (
    *("doctor", "bench", "doctor --against", "ps --url", "list --url", "pull m --url", "rm m --url"),
    *("show m --url", "stop m --url", "bulk {texts} {out} --url"),
)
MODELS = json.dumps({"models": [], "object": "list", "data": []}).encode()


class NoModels(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.send_response(200 if self.command == "GET" else 404)
        self.send_header("content-length", str(len(MODELS)))
        self.end_headers()
        self.wfile.write(MODELS)

    do_POST = do_DELETE = do_GET


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The URL of a server, and the file of its certificate's authority."""
    folder = tmp_path_factory.mktemp("tls")
    issuer = trustme.CA()
    issuer.cert_pem.write_to_path(folder / "ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    issuer.issue_cert("127.0.0.1").configure_cert(context)
    with ThreadingHTTPServer(("127.0.0.1", 0), NoModels) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield f"https://127.0.0.1:{server.server_port}", str(folder / "ca.pem")
        server.shutdown()


def words(command: str, url: str, tmp_path: Path, *further: str) -> list[str]:
    (tmp_path / "texts.txt").write_text("a text\n")
    named = command.format(texts=tmp_path / "texts.txt", out=tmp_path / "out.npy").split()
    return [*named, *([] if named[-1].startswith("--") else ["--url"]), url, *further]


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_authority_is_not_an_absent_server(
    command: str, authority: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the certificate and both ways to trust it."""
    assert run(words(command, authority[0], tmp_path)) in (1, 2)
    error = capsys.readouterr().err
    assert "certificate is not trusted: unable to get local issuer certificate" in error
    assert "SSL_CERT_FILE" in error
    assert "no server answers" not in error


@pytest.mark.parametrize(
    ("command", "source"),
    [*((command, "--cacert") for command in COMMANDS), ("ps --url", "SSL_CERT_FILE"), (COMMANDS[-1], "SSL_CERT_FILE")],
)
def test_a_named_authority_is_trusted(
    command: str,
    source: str,
    authority: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By the option and by the variable that OpenSSL reads. The command then meets a server without models."""
    url, file = authority
    if source == "SSL_CERT_FILE":
        monkeypatch.setenv(source, file)
    further = ["--cacert", file] if source == "--cacert" else []
    if command == "doctor --against":
        further += ["--url", url]
    run(words(command, url, tmp_path, *further))
    captured = capsys.readouterr()
    assert "certificate" not in captured.err + captured.out


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_an_invalid_authority_is_one_line(
    content: str | None, authority: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is absent, or has no certificate."""
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    assert run(["ps", "--url", authority[0], "--cacert", str(file)]) == 2
    assert capsys.readouterr().err.startswith(f"vectord: --cacert: '{file}': ")


def test_the_client_names_the_certificate(authority: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without retries, since none would help. SSL_CERT_FILE makes it trusted."""
    with Client(authority[0]) as client, pytest.raises(ServerFailed, match="certificate is not trusted"):
        client.models()
    monkeypatch.setenv("SSL_CERT_FILE", authority[1])
    with Client(authority[0]) as client:
        assert client.models() == []
