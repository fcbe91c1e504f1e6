"""TLS with a certificate of the test."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
import trustme
from tests.server.fakes import EMBED, FakeEngine
from tests.server.live import Client, live, post

from vectord.config import ServerConfig
from vectord.errors import ConfigError
from vectord.server.http.app import create_app
from vectord.server.http.listener import certificate_of
from vectord.server.http.run import serve

CA = trustme.CA()


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Settings with a certificate for this machine."""
    issued = CA.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    for blob in issued.cert_chain_pems:
        blob.write_to_path(tmp_path / "chain.pem", append=True)
    return {"tls_cert_file": str(tmp_path / "chain.pem"), "tls_key_file": str(tmp_path / "key.pem")}


def trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    CA.configure_trust(context)
    return context


async def test_requests_are_answered_over_tls(files: dict[str, str]) -> None:
    """With the same bounds; plain HTTP gets no response."""
    async with live(**files) as running:
        secure = Client(*await asyncio.open_connection("127.0.0.1", running.port, ssl=trusting()))
        secure.send(post({"input": "hello"}))
        assert (await secure.reply()).status == 200
        secure.close()
        plain = Client(*await asyncio.open_connection("127.0.0.1", running.port))
        plain.send(post({"input": "hello"}))
        assert await plain.closed()
        plain.close()


async def test_tls_1_1_is_refused(files: dict[str, str]) -> None:
    context = trusting()
    with pytest.warns(DeprecationWarning):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    async with live(**files) as running:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", running.port, ssl=context)


def test_the_url_has_the_scheme_https(files: dict[str, str]) -> None:
    told = []
    config = ServerConfig(port=0, **files)
    app = create_app(FakeEngine(), [EMBED], config)

    def heard(url: str) -> None:
        told.append(url)
        app.state.shutdown.begin()

    serve(app, config, on_listening=heard)
    (url,) = told
    assert url.startswith("https://127.0.0.1:")


def test_without_files_tls_is_off(files: dict[str, str]) -> None:
    """Also with files if it is switched off."""
    assert certificate_of(ServerConfig()) is None
    assert certificate_of(ServerConfig(tls_enabled=False, **files)) is None
    assert certificate_of(ServerConfig(tls_enabled=True, **files)) is not None


@pytest.mark.parametrize(
    "broken",
    ["no key", "no certificate", "nothing", "absent", "folder", "pipe", "not PEM", "another's key", "password"],
)
def test_invalid_files_are_a_one_line_error(broken: str, files: dict[str, str], tmp_path: Path) -> None:
    """Before the port is bound, without a password prompt."""
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("nonsense")
    os.mkfifo(tmp_path / "pipe")
    if broken == "another's key":
        CA.issue_cert("127.0.0.1").private_key_pem.write_to_path(wrong)
    if broken == "password":
        locked = ["openssl", "pkey", "-in", files["tls_key_file"], "-aes256", "-passout", "pass:hush"]
        wrong.write_bytes(subprocess.run(locked, check=True, capture_output=True).stdout)
    said = {
        "no key": {"tls_cert_file": files["tls_cert_file"]},
        "no certificate": {"tls_key_file": files["tls_key_file"]},
        "nothing": {"tls_enabled": True},
        "absent": files | {"tls_key_file": str(tmp_path / "absent")},
        "folder": files | {"tls_cert_file": str(tmp_path)},
        "pipe": files | {"tls_cert_file": str(tmp_path / "pipe")},
    }.get(broken, files | {"tls_key_file": str(wrong)})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = ServerConfig(port=taken.getsockname()[1], **said)
        with pytest.raises(ConfigError, match="--tls-") as caught:
            serve(create_app(FakeEngine(), [EMBED], config), config)
    assert "\n" not in caught.value.message


def test_a_process_with_invalid_files_exits_with_2(tmp_path: Path) -> None:
    """With one line on standard error."""
    words = ["serve", "--backend", "fake", "--port", "0", "--tls-cert-file", "a.pem", "--tls-key-file", "b.pem"]
    command = [sys.executable, "-m", "vectord", *words]
    ended = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.splitlines()[-1].startswith("vectord: --tls-cert-file: 'a.pem' cannot be read")
