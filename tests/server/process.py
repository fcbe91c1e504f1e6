"""A server in its own process, for tests of signals, exit codes and ports.

As a program it serves FakeEngine and prints its URL: python -m tests.server.process ANSWER_S TIMEOUT_S FILES
"""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.server.fakes import EMBED, FakeEngine

from vectord.config import ServerConfig
from vectord.server.http.app import create_app
from vectord.server.http.run import serve

ROOT = Path(__file__).parents[2]


class SlowEngine(FakeEngine):
    """Takes `answer_s` for each result."""

    def __init__(self, answer_s: float) -> None:
        super().__init__()
        self._answer_s = answer_s

    async def before_answer(self) -> None:
        await asyncio.sleep(self._answer_s)


@contextmanager
def process(
    answer_s: float = 0.0, timeout_s: float = 10.0, files: int = 0
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The process and its port; killed at the end. files: its limit of open files; 0: unchanged."""
    command = [sys.executable, "-m", "tests.server.process", str(answer_s), str(timeout_s), str(files)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            yield running, int(running.stdout.readline().rsplit(":", 1)[1])
        finally:
            running.kill()


def main(answer_s: float, timeout_s: float, files: float) -> None:
    if files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(files), int(files)))
    config = ServerConfig(port=0, shutdown_timeout_secs=timeout_s)
    serve(create_app(SlowEngine(answer_s), [EMBED], config), config, on_listening=lambda url: print(url, flush=True))


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
