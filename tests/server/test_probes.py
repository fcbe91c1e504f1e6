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
        ({"a": "failed"}, 503),
        ({"a": "stalled"}, 503),
    ],
    ids=["ready", "loading", "failed", "stalled"],
)
async def test_ready_means_every_model_is_ready(path: str, states: dict[str, str], status: int) -> None:
    """One model that is not ready is enough to say so, on every route that health checks ask."""
    assert (await call(app(**states), "GET", path)).status == status


async def test_alive_whatever_the_models_do() -> None:
    """/health/live is red for no model's sake: a restart would not help it load."""
    assert (await call(app(a="failed"), "GET", "/health/live")).status == 200


async def test_health_serves_every_products_reader() -> None:
    """status for seed 001, models for 002, unix for infinity, and 503 in TEI's words."""
    body = (await call(app(a="ready"), "GET", "/health")).json
    assert body["status"] == "healthy"
    assert body["models"] == ["a"]
    assert body["unix"] > 1_700_000_000
    body = (await call(app(a="loading"), "GET", "/health")).json
    assert (body["error"], body["error_type"], body["status"]) == ("unhealthy", "Unhealthy", "unhealthy")


async def test_ready_names_what_is_not() -> None:
    """The state of each model, by its served name."""
    body = (await call(app(a="ready", b="loading"), "GET", "/health/ready")).json
    assert body == {"status": "not ready", "models": {"a": "ready", "b": "loading"}}


async def test_probes_are_never_cached() -> None:
    """A proxy must not keep an old state."""
    for path in ("/health", "/health/live", "/health/ready", "/"):
        assert (await call(app(a="ready"), "GET", path)).headers["cache-control"] == "no-store"


async def test_ping_has_no_body() -> None:
    """As TEI's and SageMaker's."""
    reply = await call(app(a="ready"), "GET", "/ping")
    assert (reply.body, reply.headers["content-length"]) == (b"", "0")
