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

from vectord.server.http.hardening.write_backpressure import MIN_ROOM_BYTES, PRESSED_STALL_S

CLIENTS = 60  # 10 MB each: 600 MB without a bound
MOST_BYTES = 400 * 2**20  # of memory above an idle server, once the clients are answered or refused
READERS = 12
PATIENCE_S = 300.0
JSON = {"content-type": "application/json"}
BODY = json.dumps({"input": [f"text {n}" for n in range(2048)]}).encode()
FAKE = ("--backend", "fake")  # the responses matter, not what they contain


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is read from /proc")
@pytest.mark.parametrize("accepts", ["identity", "gzip"])
def test_unread_responses_are_bounded(tmp_path: Path, accepts: str) -> None:
    """The server holds no more uncompressed responses than it has room for, its memory falls below the limit, and small
    requests are answered."""
    with running(tmp_path / "log", *FAKE) as (url, process), ExitStack() as clients:
        answered = httpx.post(f"{url}/v1/embeddings", content=BODY, headers=JSON, timeout=60).raise_for_status()
        assert len(answered.content) > 5_000_000
        idle_bytes = resident_bytes(process.pid)
        sockets = [clients.enter_context(closing(silent_client(url, accepts))) for _ in range(CLIENTS)]
        began_s = time.monotonic()
        held_bytes: list[int] = []

        def all_are_answered() -> bool:
            lengths = [response_bytes(client) for client in sockets]
            if (
                time.monotonic() - began_s < PRESSED_STALL_S
            ):  # later, the server disconnects some, which is not seen here
                held_bytes.append(sum(length or 0 for length in lengths))
            return None not in lengths

        wait_for(all_are_answered, process, PATIENCE_S)
        if accepts == "identity":  # the kernel's buffers take most of a compressed response
            # Not the resident memory: it also has the responses that a busy machine renders at the same time.
            assert len(answered.content) < max(held_bytes) <= MIN_ROOM_BYTES + 2 * len(answered.content)
        wait_for(lambda: resident_bytes(process.pid) < idle_bytes + MOST_BYTES, process, PATIENCE_S)
        assert httpx.post(f"{url}/v1/embeddings", json={"input": "small"}, timeout=60).status_code == 200


def test_reading_clients_are_answered_alongside_idle_ones(tmp_path: Path) -> None:
    """All reading clients receive complete responses; rejected ones retry."""
    accepts = "gzip"
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


def response_bytes(client: socket.socket) -> int | None:
    """The length of the unread response, 0 for a refusal or a closed connection, or None without an answer yet."""
    try:
        head = client.recv(4096, socket.MSG_PEEK)
    except BlockingIOError:
        return None
    except ConnectionResetError:
        return 0
    found = re.match(rb"HTTP/1.1 200 .*?content-length: (\d+)\r\n", head, re.DOTALL | re.IGNORECASE)
    assert found or not head.startswith(b"HTTP/1.1 200"), head[:200]
    return int(found[1]) if found else 0


def resident_bytes(pid: int) -> int:
    """The current resident memory."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024
