"""What orchestrators and load balancers ask, and the front page. No key needed; nothing here waits.

`/health`        for everyone's health check: 200 with a superset body, 503 in TEI's words while not ready
`/health/live`   200 as long as the process answers
`/health/ready`  200 when every model is ready, else 503 with the state of each
`/ping`, `/`     as `/health`, with no body and with a small one (GET / is TEI's health route too)
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from vectord.dialects.base import Rendered
from vectord.engine.client import EngineClient
from vectord.server.routing import Page
from vectord.server.shutdown import Shutdown


def probe_pages(engine: EngineClient, shutdown: Shutdown, version: str) -> Sequence[Page]:
    probes = Probes(engine, shutdown, version)
    return (
        Page(path="/health", show=probes.health, summary="Whether requests will be answered, and by which models"),
        Page(path="/health/live", show=probes.live, summary="Whether the process answers"),
        Page(path="/health/ready", show=probes.ready, summary="Whether every model is ready, and the state of each"),
        Page(path="/ping", show=probes.ping, summary="As /health, with no body"),
        Page(path="/", show=probes.front, summary="What this is"),
    )


class Probes:
    def __init__(self, engine: EngineClient, shutdown: Shutdown, version: str) -> None:
        self._engine = engine
        self._shutdown = shutdown
        self._version = version

    def health(self, headers: Mapping[str, str]) -> Rendered:
        states = self._engine.readiness()
        ready = self._is_ready(states)
        body = {
            "status": "healthy" if ready else "unhealthy",
            "models": list(states),
            "states": states,
            "version": self._version,
            "unix": time.time(),
        }
        return _json(body) if ready else _json({"error": "unhealthy", "error_type": "Unhealthy"} | body, 503)

    def live(self, headers: Mapping[str, str]) -> Rendered:
        return _json({"status": "alive"})

    def ready(self, headers: Mapping[str, str]) -> Rendered:
        states = self._engine.readiness()
        ready = self._is_ready(states)
        status = "ready" if ready else "draining" if self._shutdown.begun else "not ready"
        return _json({"status": status, "models": states}, 200 if ready else 503)

    def ping(self, headers: Mapping[str, str]) -> Rendered:
        return Rendered(body=b"", status=200 if self._is_ready(self._engine.readiness()) else 503)

    def front(self, headers: Mapping[str, str]) -> Rendered:
        states = self._engine.readiness()
        body = {"name": "vectord", "version": self._version, "docs": "/docs", "models": states}
        return _json(body, 200 if self._is_ready(states) else 503)

    def _is_ready(self, states: Mapping[str, str]) -> bool:
        return not self._shutdown.begun and all(state == "ready" for state in states.values())


def _json(body: Mapping[str, Any], status: int = 200) -> Rendered:
    return Rendered(body=orjson.dumps(body), status=status, headers={"cache-control": "no-store"})
