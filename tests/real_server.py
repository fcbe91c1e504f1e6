"""`vectord serve` with the default model, as a user starts it: a process of its own on a real socket."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import httpx

T = TypeVar("T")


@contextmanager
def running(log: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The base URL of a server that is ready to answer, and its process; it must end well. log: its output."""
    command = [sys.executable, "-m", "vectord", "serve", "--port", "0", *options]
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            url = wait_for(lambda: re.search(r"https?://127\.0\.0\.1:\d+", log.read_text()), process)[0]
            wait_for(lambda: is_ready(url), process)
            yield url, process
        finally:
            process.terminate()
        assert process.wait(timeout=30) == 0, log.read_text()


def is_ready(url: str) -> bool:
    """The log may have the address a moment before the server accepts connections."""
    try:
        return httpx.get(f"{url}/health/ready").status_code == 200
    except httpx.ConnectError:
        return False


def wait_for(probe: Callable[[], T], process: subprocess.Popen[bytes], timeout_s: float = 60) -> T:
    """The first true answer of `probe`; fails when the process ends or the time is up before there is one."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s and process.poll() is None:
        if found := probe():
            return found
        time.sleep(0.05)
    raise AssertionError(f"the server is not there: exit code {process.poll()}")
