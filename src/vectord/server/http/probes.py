"""Health checks for orchestrators and load balancers, and the front page. No key needed; a key that may use only some
models sees only those, and without a key `ServerConfig.public_model_names` decides whether any is named.

`/health`        200 if requests will be answered, else 503; the body has the keys of the imitated product, too
`/health/live`   200 while the process answers
`/health/ready`  200 if requests will be answered, else 503; the state of each model in both cases
`/healthz`, `/livez`, `/readyz`: the same three, by the names that orchestrators use
`/ping`, `/`     as `/health`, without a body and with a small one; a browser gets the console at /

Ready means `ready_models` is not empty (required_models can demand more than one) and the server is not shutting down.
The status depends on all models, not on the key of the request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import orjson
from msgspec.structs import replace

from vectord.engine.client import EngineClient
from vectord.products.common.dialect import Dialect, Incoming, Rendered
from vectord.products.common.models import ready_models
from vectord.schema import ANYONE, ModelList
from vectord.server.http.routing import Page
from vectord.server.pages.console import console, prefers_html
from vectord.server.pipeline import Shutdown

Visible: TypeAlias = Callable[[Mapping[str, str]], frozenset[str] | None]


def probe_pages(
    engine: EngineClient, shutdown: Shutdown, version: str, visible: Visible, imitated: Dialect | None = None
) -> Sequence[Page]:
    """visible: from a request's headers to the models that its sender may see, None for all. imitated: the product
    whose values /health and / report; None: this server's own."""
    probes = Probes(engine, shutdown, version, visible, imitated)
    pages = (
        ("/health", probes.health, "Show whether the server accepts requests, and the models"),
        ("/health/live", probes.live, "Whether the process answers"),
        ("/health/ready", probes.ready, "Show whether the server accepts requests, and the state of each model"),
        ("/healthz", probes.health, "As /health"),
        ("/livez", probes.live, "As /health/live"),
        ("/readyz", probes.ready, "As /health/ready"),
        ("/ping", probes.ping, "As /health, without a body"),
        ("/", probes.front, "The server's name, version and models"),
    )
    return [Page(path=path, show=show, summary=summary, probe=True) for path, show, summary in pages]


class Probes(msgspec.Struct, frozen=True):
    _engine: EngineClient
    _shutdown: Shutdown
    _version: str
    _visible: Visible
    _imitated: Dialect | None

    def health(self, headers: Mapping[str, str]) -> Rendered:
        served = self._engine.models()
        ready = self._is_ready(served)
        seen = self._seen_by(headers)
        states = self._states(seen)
        body = {
            "status": "healthy" if ready else "unhealthy",
            "models": list(states),
            "states": states,
            "version": self._version,
            "unix": time.time(),
        }
        if self._imitated is not None and self._imitated.health is not None:
            body |= self._imitated.health(seen, ready)
        return _json(body, 200 if ready else 503)

    def live(self, headers: Mapping[str, str]) -> Rendered:
        return _json({"status": "ok"})

    def ready(self, headers: Mapping[str, str]) -> Rendered:
        served = self._engine.models()
        ready = self._is_ready(served)
        models = ready_models(served)
        body = {
            "status": "ok" if ready else "not_ready",
            "embedding": any(model.outputs for model in models),
            "reranker": any(model.reranks for model in models),
            "draining": self._shutdown.begun,
            "models": self._states(self._seen_by(headers)),
        }
        return _json(body, 200 if ready else 503)

    def ping(self, headers: Mapping[str, str]) -> Rendered:
        return Rendered(body=b"", status=200 if self._is_ready(self._engine.models()) else 503)

    def front(self, headers: Mapping[str, str]) -> Rendered:
        if prefers_html(headers):
            return console(headers)
        ready, seen = self._is_ready(self._engine.models()), self._seen_by(headers)
        routes = () if self._imitated is None else self._imitated.routes
        imitated = next((route for route in routes if (route.method, route.path) == ("GET", "/")), None)
        if ready and imitated is not None:
            return imitated.parse(Incoming()).answered(seen)
        body = {"name": "vectord", "version": self._version, "docs": "/docs", "models": self._states(seen)}
        return _json(body, 200 if ready else 503)

    def _seen_by(self, headers: Mapping[str, str]) -> ModelList:
        return self._engine.models(replace(ANYONE, models=self._visible(headers)))

    def _states(self, seen: ModelList) -> dict[str, str]:
        names = {info.name for info in seen.models}
        return {name: state for name, state in self._engine.readiness().items() if name in names}

    def _is_ready(self, served: ModelList) -> bool:
        return bool(ready_models(served)) and not self._shutdown.begun


def _json(body: Mapping[str, Any], status: int = 200) -> Rendered:
    return Rendered(body=orjson.dumps(body), status=status, headers={"cache-control": "no-store"})
