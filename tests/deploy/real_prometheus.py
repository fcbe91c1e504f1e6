"""A real Prometheus for the tests of deploy/."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

PATIENCE_S = 120


@dataclass(frozen=True)
class Prometheus:
    url: str
    process: subprocess.Popen[bytes]

    def ask(self, expression: str) -> list[dict[str, Any]]:
        """The series of an expression; fails on an error."""
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": expression}, timeout=PATIENCE_S)
        body = answer.json()
        assert body["status"] == "success", f"{expression}: {body['error']}"
        found: list[dict[str, Any]] = body["data"]["result"]
        return found

    def wait_for_numbers(self, expression: str) -> list[dict[str, Any]]:
        """The series with finite values. There are none for a while after a slow scrape."""
        found: list[dict[str, Any]] = []

        def look() -> bool:
            found[:] = [one for one in self.ask(expression) if math.isfinite(float(one["value"][1]))]
            return bool(found)

        self.wait_for(look)
        return found

    def wait_for(self, probe: Callable[[], object]) -> None:
        """Waits until the condition holds; scrapes and rules run once a second."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not probe():
            assert self.process.poll() is None, f"Prometheus ended with {self.process.returncode}"
            assert time.monotonic() < deadline_s, "Prometheus has not seen it"
            time.sleep(0.1)


@contextmanager
def prometheus_at(port: int, config: Path, folder: Path) -> Iterator[Prometheus]:
    """A running Prometheus with this configuration. folder: its writable folder."""
    options = [f"--config.file={config}", f"--web.listen-address=127.0.0.1:{port}"]
    stored = [f"--storage.tsdb.path={folder / 'data'}", "--log.level=warn"]
    log = folder / "log"
    with log.open("w") as out, subprocess.Popen(["prometheus", *options, *stored], stdout=out, stderr=out) as process:
        prometheus = Prometheus(f"http://127.0.0.1:{port}", process)
        try:
            prometheus.wait_for(lambda: _is_ready(prometheus.url))
            yield prometheus
        finally:
            process.terminate()
    assert process.returncode == 0, log.read_text()


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready").status_code == 200
    except httpx.TransportError:
        return False
