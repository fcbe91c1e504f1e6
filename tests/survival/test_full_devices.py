"""While every device is busy, probes and rejections of each product are answered immediately."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.engine.fakes import FakeBackend, close_gate, entered, serving
from tests.server.live import ask, get, live, post

from vectord.observability.metrics import Metrics
from vectord.products.common.dialect import load_dialects

SMART_EMBEDDER = {"sentences": ["a"], "return_dense": True, "return_sparse": False, "return_colbert": False}


@pytest.mark.parametrize(
    ("dialect", "path", "body", "status", "words"),
    [
        ("smart_embedder", "/embeddings", SMART_EMBEDDER, 503, "Server is overloaded. Please retry later."),
        (
            "simple_inference_server",
            "/v1/embeddings",
            {"model": "m0", "input": "a"},
            429,
            "Timed out waiting for worker",
        ),
        ("embedding_server", "/api/v1/embed", {"inputs": "a"}, 429, "overloaded"),
    ],
)
async def test_limits_and_health_do_not_wait_for_a_device(
    dialect: str, path: str, body: dict[str, Any], status: int, words: str
) -> None:
    """The test controls the end of the running forward pass, so nothing can have waited for it."""
    backend = FakeBackend()
    async with (
        serving(backend, max_concurrent_requests=1, queue_timeout_s=0.01) as engine,
        live(engine, load_dialects((dialect, "openai")), Metrics("0")) as server,
    ):
        close_gate(backend)
        first = asyncio.create_task(ask(server, post({"model": "m0", "input": "b"}, "/dialects/openai/v1/embeddings")))
        await entered(backend)
        refused = await ask(server, post(body, path))
        assert (refused.status, words in refused.body.decode()) == (status, True), refused.body
        assert int(refused.headers["retry-after"]) >= 1
        for page in ("/health/live", "/health/ready", "/metrics"):
            assert (await ask(server, get(page))).status == 200
        assert not first.done()
        backend.gate.set()
        assert (await first).status == 200
