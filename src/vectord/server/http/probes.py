"""What orchestrators and load balancers ask, and the front page. No key needed; nothing here waits.

`/health`        for everyone's health check: 200 with a superset body, 503 with TEI's words while not ready
`/health/live`   200 as long as the process answers
`/health/ready`  200 when requests will be answered, else 503; the state of each model either way
`/ping`, `/`     as `/health`, with no body and with a small one (GET / is TEI's health route too); a browser sees the
                 console at /

What ready means is wire/readiness.py's, for the products' own probes too; beyond that, a server that shuts down is not.
The state of each model is in every body here and in vectord_model_ready.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from vectord.engine.client import EngineClient
from vectord.products.common.readiness import answering
from vectord.products.common.rendered import Rendered
from vectord.schema import ModelList
from vectord.server.http.routing import Page
from vectord.server.http.shutdown import Shutdown
from vectord.server.pages.console import console, wants_console

# TEI's words, and Simple Inference Server's key.
UNHEALTHY = {"error": "unhealthy", "error_type": "Unhealthy", "detail": "The server is not ready."}


def probe_pages(engine: EngineClient, shutdown: Shutdown, version: str) -> Sequence[Page]:
    probes = Probes(engine, shutdown, version)
    return (
        Page(path="/health", show=probes.health, summary="Whether requests will be answered, and by which models"),
        Page(path="/health/live", show=probes.live, summary="Whether the process answers"),
        Page(
            path="/health/ready",
            show=probes.ready,
            summary="Whether requests will be answered, and the state of each model",
        ),
        Page(path="/ping", show=probes.ping, summary="As /health, with no body"),
        Page(path="/", show=probes.front, summary="What this is"),
    )


class Probes:
    def __init__(self, engine: EngineClient, shutdown: Shutdown, version: str) -> None:
        self._engine = engine
        self._shutdown = shutdown
        self._version = version

    def health(self, headers: Mapping[str, str]) -> Rendered:
        served = self._engine.models()
        ready = self._is_ready(served)
        states = self._engine.readiness()
        body = {
            "status": "healthy" if ready else "unhealthy",
            "models": list(states),
            "states": states,
            "version": self._version,
            "unix": time.time(),
            **_smart_embedder_facts(served),
        }
        return _json(body) if ready else _json(UNHEALTHY | body, 503)

    def live(self, headers: Mapping[str, str]) -> Rendered:
        return _json({"status": "ok"})

    def ready(self, headers: Mapping[str, str]) -> Rendered:
        served = self._engine.models()
        ready = self._is_ready(served)
        models = answering(served)
        body = {
            "status": "ok" if ready else "not_ready",
            "embedding": any(model.outputs for model in models),
            "reranker": any(model.reranks for model in models),
            "draining": self._shutdown.begun,
            "models": self._engine.readiness(),
        }
        return _json(body, 200 if ready else 503)

    def ping(self, headers: Mapping[str, str]) -> Rendered:
        return Rendered(body=b"", status=200 if self._is_ready(self._engine.models()) else 503)

    def front(self, headers: Mapping[str, str]) -> Rendered:
        if wants_console(headers):
            return console(headers)
        states = self._engine.readiness()
        body = {"name": "vectord", "version": self._version, "docs": "/docs", "models": states}
        return _json(body, 200 if self._is_ready(self._engine.models()) else 503)

    def _is_ready(self, served: ModelList) -> bool:
        return bool(answering(served)) and not self._shutdown.begun


def _smart_embedder_facts(served: ModelList) -> dict[str, Any]:
    """What Smart Embedder's /health says of its models and device; 0 and "unknown" where no model is loaded yet.

    batch_size: texts of full length that a forward runs, which is what that product sizes its batches by.
    max_requests_in_batch: texts of any length, each of which may be another request's.
    """
    embedder = next((model for model in served.models if model.outputs), None)
    reranker = next((model for model in served.models if model.reranks), None)
    sparse = next((model for model in served.models if model.outputs >= {"dense", "sparse", "colbert"}), embedder)
    devices = sorted({name for model in served.models for name in model.device.split(",")} - {"unknown"})
    gpus = [device for device in devices if device != "cpu"]
    longest = embedder.max_input_tokens if embedder else 0
    tokens = served.limits.max_batch_tokens
    texts = min(tokens, served.limits.max_batch_requests or tokens)
    return {
        "gpu": {
            "available": bool(gpus),
            "device_info": ", ".join(gpus) or ("CPU" if devices else "unknown"),
            "memory_gb": 0,
            "device_count": len(gpus),
            "multi_gpu_enabled": len(gpus) > 1,
            "configured_devices": devices,
        },
        "model": sparse.name if sparse else None,
        "dense_embedding_model": embedder.name if embedder else None,
        "reranker_model": reranker.name if reranker else None,
        "max_input_length": longest,
        "batch_size": min(texts, max(1, tokens // longest)) if longest else texts,
        "max_requests_in_batch": texts,
    }


def _json(body: Mapping[str, Any], status: int = 200) -> Rendered:
    return Rendered(body=orjson.dumps(body), status=status, headers={"cache-control": "no-store"})
