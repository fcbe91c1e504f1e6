"""A real redis-server for tests of what replicas share."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PATIENCE_S = 60

needs_redis = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="there is no redis-server: `python -m tests.programs` fetches it"
)


@contextmanager
def redis_at(port: int, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A server that keeps nothing, once it listens.

    On every address it would also need the port on those where another process has a connection from it.
    """
    command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", str(folder)]
    log = folder / "redis.log"
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out, text=True) as running:
        try:
            _wait_until_listening(port, running, log)
            yield running
        finally:
            running.kill()


def _wait_until_listening(port: int, running: subprocess.Popen[str], log: Path) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionError:
            assert running.poll() is None, log.read_text()
            assert time.monotonic() < deadline_s, log.read_text()
