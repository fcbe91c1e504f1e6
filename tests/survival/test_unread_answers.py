"""Clients of the real server that request large responses and read nothing, alongside clients that read."""

from __future__ import annotations

import json
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import orjson
import pytest
from tests.real_server import running, wait_for

CLIENTS = 60  # 10 MB each: 600 MB without a bound
MOST_BYTES = 400 * 2**20  # above an idle server, while the clients do not read
READERS = 12
PATIENCE_S = 300.0
JSON = {"content-type": "application/json"}
BODY = json.dumps({"input": [f"text {n}" for n in range(2048)]}).encode()
FAKE = ("--backend", "fake")  # the responses matter, not what they contain


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is read from /proc")
@pytest.mark.parametrize("accepts", ["identity", "gzip"])
def test_unread_responses_are_bounded(tmp_path: Path, accepts: str) -> None:
    """Resident memory falls below its limit while clients read nothing, and small requests are answered."""
    with running(tmp_path / "log", *FAKE) as (url, process), ExitStack() as clients:
        answered = httpx.post(f"{url}/v1/embeddings", content=BODY, headers=JSON, timeout=60).raise_for_status()
        assert len(answered.content) > 5_000_000
        idle_bytes = resident_bytes(process.pid)
        sockets = [clients.enter_context(closing(silent_client(url, accepts))) for _ in range(CLIENTS)]
        wait_for(lambda: all(map(is_answered_or_refused, sockets)), process, PATIENCE_S)
        # Not the peak: it depends on how many responses a busy machine renders at the same time.
        wait_for(lambda: resident_bytes(process.pid) < idle_bytes + MOST_BYTES, process, PATIENCE_S)
        assert httpx.post(f"{url}/v1/embeddings", json={"input": "small"}, timeout=60).status_code == 200


@pytest.mark.parametrize("accepts", ["identity", "gzip"])
def test_reading_clients_are_answered_alongside_idle_ones(tmp_path: Path, accepts: str) -> None:
    """All reading clients receive complete responses; rejected ones retry."""
    with running(tmp_path / "log", *FAKE) as (url, _), ExitStack() as clients:
        whole = vectors_of(httpx.post(f"{url}/v1/embeddings", content=BODY, headers=JSON, timeout=60))
        for _ in range(CLIENTS // 2):
            clients.enter_context(closing(silent_client(url, accepts)))
        with ThreadPoolExecutor(READERS) as readers:
            assert all(readers.map(lambda _: answer_of(url, accepts) == whole, range(READERS)))


def answer_of(url: str, accepts: str) -> object:
    """Its vectors; retries after rejections."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        headers = JSON | {"accept-encoding": accepts}
        answer = httpx.post(f"{url}/v1/embeddings", content=BODY, headers=headers, timeout=PATIENCE_S)
        if answer.status_code != 429:
            return vectors_of(answer)
        time.sleep(float(answer.headers["retry-after"]))
    raise AssertionError("never answered")


def vectors_of(answer: httpx.Response) -> object:
    return orjson.loads(answer.raise_for_status().content)["data"]


def silent_client(url: str, accepts: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((host, int(port)))
    head = f"POST /v1/embeddings HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    client.sendall(f"{head}accept-encoding: {accepts}\r\ncontent-length: {len(BODY)}\r\n\r\n".encode() + BODY)
    client.setblocking(False)
    return client


def is_answered_or_refused(client: socket.socket) -> bool:
    """Peeks at the socket without reading."""
    try:
        return bool(client.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


def resident_bytes(pid: int) -> int:
    """The current resident memory."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024
