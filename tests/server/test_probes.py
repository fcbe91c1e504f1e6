"""What orchestrators see at each stage of a server's life."""

from __future__ import annotations

from typing import Any

import pytest
from tests.server.asgi import call
from tests.server.fakes import EMBED, FakeEngine

from vectord.config import ServerConfig
from vectord.server.app import create_app


def app(**states: str) -> Any:
    engine = FakeEngine()
    engine.states = states
    return create_app(engine, [EMBED], ServerConfig())


@pytest.mark.parametrize("path", ["/health", "/health/ready", "/ping", "/"])
@pytest.mark.parametrize(
    ("states", "status"),
    [
        ({"a": "ready", "b": "ready"}, 200),
        ({"a": "ready", "b": "loading"}, 503),
        ({"a": "failed", "b": "loading"}, 503),
        ({"a": "ready", "b": "unloaded"}, 200),
        ({"a": "unloaded"}, 200),
        ({"a": "failed"}, 503),
        ({"a": "stalled"}, 503),
        ({"a": "failed", "b": "ready"}, 200),
        ({"a": "stalled", "b": "unloaded"}, 200),
        ({"a": "failed", "b": "stalled"}, 503),
    ],
    ids=str,
)
async def test_ready_means_that_requests_will_be_answered(path: str, states: dict[str, str], status: int) -> None:
    """The loading of the start is over and one model answers, be it after being loaded; one that failed or stalled
    takes the server away from nobody else. The same on every route that health checks ask."""
    assert (await call(app(**states), "GET", path)).status == status


async def test_a_model_that_loads_later_takes_nothing_away() -> None:
    """Once ready, a model that its first use or its next one loads leaves the server ready."""
    engine = FakeEngine()
    served = create_app(engine, [EMBED], ServerConfig())
    seen = []
    for state in ("loading", "ready", "unloaded", "loading", "ready", "failed", "loading"):
        engine.states = {"a": state}
        seen.append((await call(served, "GET", "/health/ready")).status)
    assert seen == [503, 200, 200, 200, 200, 503, 200]


async def test_alive_whatever_the_models_do() -> None:
    """/health/live is red for no model's sake: a restart would not help it load."""
    assert (await call(app(a="failed"), "GET", "/health/live")).status == 200


async def test_health_serves_every_products_reader() -> None:
    """status for Smart Embedder, models for Simple Inference Server, unix for infinity, and 503 in TEI's words."""
    body = (await call(app(a="ready"), "GET", "/health")).json
    assert body["status"] == "healthy"
    assert body["models"] == ["a"]
    assert body["unix"] > 1_700_000_000
    assert (body["model"], body["dense_embedding_model"], body["reranker_model"]) == ("a", "a", None)
    assert (body["gpu"]["available"], body["gpu"]["configured_devices"]) == (False, ["cpu"])
    assert body["max_input_length"] == 256
    body = (await call(app(a="loading"), "GET", "/health")).json
    assert (body["error"], body["error_type"], body["status"]) == ("unhealthy", "Unhealthy", "unhealthy")


async def test_ready_names_every_state() -> None:
    """The state of each model, by its served name, whether the server is ready or not."""
    body = (await call(app(a="ready", b="failed"), "GET", "/health/ready")).json
    states = {"a": "ready", "b": "failed"}
    assert body == {"status": "ok", "embedding": True, "reranker": False, "draining": False, "models": states}
    body = (await call(app(a="ready", b="loading"), "GET", "/health/ready")).json
    assert (body["status"], body["models"]) == ("not_ready", {"a": "ready", "b": "loading"})


async def test_probes_are_never_cached() -> None:
    """A proxy must not keep an old state."""
    for path in ("/health", "/health/live", "/health/ready", "/"):
        assert (await call(app(a="ready"), "GET", path)).headers["cache-control"] == "no-store"


async def test_ping_has_no_body() -> None:
    """As TEI's and SageMaker's."""
    reply = await call(app(a="ready"), "GET", "/ping")
    assert (reply.body, reply.headers["content-length"]) == (b"", "0")
