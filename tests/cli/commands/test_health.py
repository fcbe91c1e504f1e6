"""`vectord health`: the images' HEALTHCHECK, against servers of any port, with and without TLS."""

from __future__ import annotations

import os
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import trustme

from vectord.cli.main import run


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ThreadingHTTPServer]:
    """Answers 200 at /health/ready while the folder has that file."""
    (tmp_path / "health").mkdir()
    (tmp_path / "health" / "ready").write_text("")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        yield server
        server.shutdown()


def start(server: ThreadingHTTPServer) -> str:
    """The port."""
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    return str(server.server_port)


@pytest.mark.parametrize("words", ["--port {}", "--profile tei --port {}"])
def test_a_ready_server_gives_exit_code_0(words: str, server: ThreadingHTTPServer) -> None:
    assert run(["health", *words.format(start(server)).split()]) == 0


def test_the_port_of_the_environment_counts(server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile's variable for the port, too."""
    monkeypatch.setenv("VECTORD_PROFILE", "semantic-explorer")
    monkeypatch.setenv("API_PORT", start(server))
    assert run(["health"]) == 0


def test_a_server_that_is_not_ready_gives_exit_code_1(
    server: ThreadingHTTPServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line has the URL and the status."""
    (tmp_path / "health" / "ready").unlink()
    assert run(["health", "--port", start(server)]) == 1
    assert re.search(r"http://127\.0\.0\.1:\d+/health/ready: status 404\n$", capsys.readouterr().err)


def test_without_a_server_the_reason_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["health", "--port", "1"]) == 1
    reason = "Connection refused; no server runs there, or it has other settings (--port, --host, TLS)"
    assert capsys.readouterr().err == f"vectord: http://127.0.0.1:1/health/ready: {reason}\n"


@pytest.mark.parametrize("name", ["vectord.example", "127.0.0.1"])
def test_tls_is_checked_against_the_certificate_of_the_settings(
    name: str, server: ThreadingHTTPServer, tmp_path: Path
) -> None:
    """It need not name this machine, and any other certificate is refused."""
    paths = {}
    for owner in ("server", "other"):
        made = trustme.CA().issue_cert(name)
        paths[owner] = [tmp_path / f"{owner}.pem", tmp_path / f"{owner}.key"]
        made.cert_chain_pems[0].write_to_path(paths[owner][0])
        made.private_key_pem.write_to_path(paths[owner][1])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*paths["server"])
    server.socket = context.wrap_socket(server.socket, server_side=True)
    port = start(server)
    codes = {
        owner: run(["health", "--port", port, "--tls-cert-file", str(chain), "--tls-key-file", str(key)])
        for owner, (chain, key) in paths.items()
    }
    assert codes == {"server": 0, "other": 1}


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="reads /proc")
def test_the_options_of_another_process_count(server: ThreadingHTTPServer) -> None:
    """`docker run vectord:cpu serve --port 9000` needs no further variable. A process that is no server has none."""
    program = [sys.executable, "-c", "input()", "serve", "--port", start(server), "a-model"]
    with subprocess.Popen(program, stdin=subprocess.PIPE) as process:
        assert run(["health", "--of-process", str(process.pid)]) == 0
        process.communicate(b"\n")
    assert run(["health", "--port", "1", "--of-process", str(os.getpid())]) == 1
