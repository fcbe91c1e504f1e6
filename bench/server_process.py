"""A measured server: started as users start it, polled until it answers, stopped. Blocks; in the parent process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil  # type: ignore[import-untyped]

from bench.http_load import HOST, embedding_request

POLL_S = 0.02  # polling more often would slow the loading server
STOP_S = 30.0
READY = embedding_request("ready?")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


class Server:
    """One running server, in the folder of `log`, so that it reads no settings of the repository."""

    def __init__(self, argv: Sequence[str], port: int, log: Path) -> None:
        self.port = port
        self.log = log
        environ = os.environ | {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
        # An installed package has compiled files. Without them, a start takes twice as long.
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        environ["PYTHONPYCACHEPREFIX"] = str(log.parent / "pycache")
        with log.open("wb") as output:
            self.executed_s = time.perf_counter()
            self.process = subprocess.Popen(
                argv, cwd=log.parent, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environ
            )

    def wait_until_answering(self, deadline_s: float = 120.0, question: bytes = READY) -> float:
        """Seconds from exec to the first answer. Raises RuntimeError with the end of the log after a timeout."""
        while (elapsed_s := time.perf_counter() - self.executed_s) < deadline_s and self.process.poll() is None:
            if self._ask(question).startswith(b"HTTP/1.1 200"):
                return time.perf_counter() - self.executed_s
            time.sleep(POLL_S)
        raise RuntimeError(f"no answer after {elapsed_s:.1f} s; its log ends:\n{self.log.read_text()[-2000:]}")

    def embed(self, texts: Sequence[str]) -> Any:
        """The server's vectors for `texts`, and the tokens in its usage."""
        answer = self.ask(embedding_request(list(texts)))
        return [item["embedding"] for item in answer["data"]], answer["usage"]["prompt_tokens"]

    def ask(self, question: bytes) -> Any:
        """The JSON of the answer. Raises RuntimeError for a status other than 200."""
        head, _, body = self._ask(question).partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"answered {head[:200]!r}")
        return json.loads(body)

    def _ask(self, question: bytes) -> bytes:
        """One request on a new connection; empty while the port is closed."""
        try:
            with socket.create_connection((HOST, self.port), timeout=60) as connection:
                connection.sendall(question.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
                return b"".join(iter(lambda: connection.recv(65_536), b""))
        except (ConnectionRefusedError, ConnectionResetError):
            return b""

    def resident_bytes(self) -> int:
        server = psutil.Process(self.process.pid)
        return sum(process.memory_info().rss for process in (server, *server.children(recursive=True)))

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
