"""Health checks in each state of a server."""

from __future__ import annotations

from typing import Any

import pytest
from tests.observability.test_server_metrics import gauges
from tests.server.asgi import call
from tests.server.fakes import EMBED, FakeEngine

from vectord.config import ServerConfig
from vectord.observability.metrics import Metrics
from vectord.products.common.dialect import load_dialects
from vectord.products.smart_embedder.metrics import SmartEmbedderMetrics
from vectord.server.http.app import create_app


def app(*, starting: bool = False, **states: str) -> Any:
    """An app whose models are in these states, with every product's probes."""
    engine = FakeEngine()
    engine.states = states
    engine.starting = starting
    return create_app(engine, [EMBED, *load_dialects(())], ServerConfig())


# Every route, of the server and of products, whose status reports whether requests will be answered.
READY_ROUTES = ["/health", "/health/ready", "/ping", "/", "/v1/health", "/.well-known/ready"]


@pytest.mark.parametrize(
    ("starting", "states", "ready"),
    [
        (False, {"a": "ready", "b": "ready"}, True),
        (True, {"a": "ready", "b": "loading"}, False),
        (True, {"a": "loading"}, False),
        (False, {"a": "loading"}, True),
        (False, {"a": "unloaded"}, True),
        (False, {"a": "ready", "b": "unloaded"}, True),
        (False, {"a": "failed"}, False),
        (False, {"a": "stalled"}, False),
        (False, {"a": "ready", "b": "failed"}, True),
        (False, {"a": "unloaded", "b": "stalled"}, True),
        (False, {"a": "failed", "b": "stalled"}, False),
    ],
    ids=str,
)
async def test_ready_means_that_requests_will_be_answered(starting: bool, states: dict[str, str], ready: bool) -> None:
    """All models have finished loading at start, and at least one answers, also if its first use loads it.

    The same holds on every route for health checks.
    """
    for path in READY_ROUTES:
        served = app(starting=starting, **states)
        assert ((await call(served, "GET", path)).status < 300) is ready, path
        assert (await call(served, "GET", "/health/status")).json["embedding_ready"] is ready, path
        assert (await call(served, "GET", "/health/ready")).json["embedding"] is ready, path


async def test_liveness_ignores_the_models() -> None:
    """A restart would not help a model load."""
    assert (await call(app(a="failed"), "GET", "/health/live")).status == 200


async def test_the_names_of_orchestrators_answer_as_the_others() -> None:
    """Under every profile: they are pages of the server."""
    for states in ({"a": "ready"}, {"a": "failed"}):
        for alias, path in (("/healthz", "/health"), ("/livez", "/health/live"), ("/readyz", "/health/ready")):
            both = [await call(app(**states), "GET", name) for name in (alias, path)]
            assert both[0].status == both[1].status, alias
            assert both[0].json.keys() == both[1].json.keys(), alias


async def test_health_has_the_keys_of_the_imitated_product_only() -> None:
    body = (await call(app(a="ready"), "GET", "/health")).json
    assert body.keys() == {"status", "models", "states", "version", "unix"}
    assert (body["status"], body["models"]) == ("healthy", ["a"])
    engine = FakeEngine()
    engine.states = {"a": "failed"}
    for product, keys in (("tei", {"error", "error_type"}), ("simple_inference_server", {"detail"}), ("jina", set())):
        served = create_app(engine, load_dialects(()), ServerConfig(imitates=product))
        assert (await call(served, "GET", "/health")).json.keys() - body.keys() == keys


async def test_ready_lists_the_state_of_every_model() -> None:
    body = (await call(app(a="ready", b="failed"), "GET", "/health/ready")).json
    states = {"a": "ready", "b": "failed"}
    assert body == {"status": "ok", "embedding": True, "reranker": False, "draining": False, "models": states}
    body = (await call(app(starting=True, a="ready", b="loading"), "GET", "/health/ready")).json
    assert (body["status"], body["models"]) == ("not_ready", {"a": "ready", "b": "loading"})


async def test_probes_are_never_cached() -> None:
    """A proxy must not keep an old state."""
    for path in ("/health", "/health/live", "/health/ready", "/"):
        assert (await call(app(a="ready"), "GET", path)).headers["cache-control"] == "no-store"


async def test_ping_has_no_body() -> None:
    """TEI and SageMaker send none."""
    reply = await call(app(a="ready"), "GET", "/ping")
    assert (reply.body, reply.headers["content-length"]) == (b"", "0")


async def test_the_front_page_has_ollamas_sentence_in_its_profile() -> None:
    """Scripts look for it. A browser still gets the console, and the answer is JSON while no model answers."""
    engine = FakeEngine()
    served = create_app(engine, load_dialects(()), ServerConfig(imitates="ollama"))
    assert (await call(served, "GET", "/")).body == b"Ollama is running"
    assert b"<html" in (await call(served, "GET", "/", headers={"accept": "text/html"})).body
    engine.states = {"a": "failed"}
    reply = await call(served, "GET", "/")
    assert (reply.status, reply.json["name"]) == (503, "vectord")


@pytest.mark.parametrize(("imitates", "status"), [(None, 404), ("tei", 404), ("smart_embedder", 200)])
async def test_a_products_own_page_exists_under_its_profile_only(imitates: str | None, status: int) -> None:
    """It needs no key, and is never cached."""
    metrics = Metrics("0", SmartEmbedderMetrics({}))
    metrics.watch(gauges, tuple)
    served = create_app(FakeEngine(), load_dialects(()), ServerConfig(imitates=imitates, api_key="k"), metrics)
    reply = await call(served, "GET", "/stats", headers={"authorization": "Bearer k"} if status == 404 else {})
    assert (reply.status, reply.headers.get("cache-control") == "no-store") == (status, status == 200)


@pytest.mark.parametrize("imitates", [None, "smart_embedder"])
async def test_health_reports_the_figures_of_one_product(imitates: str | None) -> None:
    """They are the imitated product's version and batch sizes; without one there are no batch sizes."""
    served = create_app(FakeEngine(), load_dialects(()), ServerConfig(imitates=imitates))
    body = (await call(served, "GET", "/health")).json
    assert (body["version"] == "1.2.0") is (imitates is not None)
    assert ((body.get("batch_size"), body.get("max_requests_in_batch")) == (1, 8)) is (imitates is not None)
