"""A server of this machine's own models on a free loopback port, for as long as it is compared: a child process."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from tempfile import TemporaryFile

from vectord.errors import ConfigError
from vectord.tools.probe.server import Server

HOST = "127.0.0.1"
PATIENCE_S = 600.0  # a large model's weights, read and compiled
STOP_S = 30.0


@contextmanager
def own_server(words: Sequence[str], token: str | None, timeout_s: float) -> Iterator[Server]:
    """words: options and models as `vectord serve` reads them. Raises ConfigError where it does not come up."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    limits = ("--rate-limit-requests-per-minute", "0")  # nobody's load is to be measured but the models'
    command = [sys.executable, "-m", "vectord", "serve", *words, "--host", HOST, "--port", str(port), *limits]
    with TemporaryFile() as log, subprocess.Popen(command, stdout=log, stderr=log) as process:  # noqa: S603
        try:
            with Server(f"http://{HOST}:{port}", token, timeout_s) as server:
                if not _is_up(server, process):
                    log.seek(0)
                    lines = log.read()[-4000:].decode(errors="replace").splitlines()
                    raise ConfigError(f"this machine's models could not be served: {lines[-1] if lines else 'no word'}")
                yield server
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _is_up(server: Server, process: subprocess.Popen[bytes]) -> bool:
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s and process.poll() is None:
        if server.get("/health/ready").status == 200:
            return True
        time.sleep(0.1)
    return False
