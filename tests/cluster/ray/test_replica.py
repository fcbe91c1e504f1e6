"""One replica without Ray: its start, its figures and its end."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import httpx
import pytest

from vectord.cluster.ray.replica import NotReady, Replica
from vectord.cluster.ray.scaling import BUSY, WAITING_TOKENS
from vectord.config import Config, DeviceConfig


def config(backend: str = "fake") -> Config:
    return replace(Config(), device=replace(DeviceConfig(), backend=backend, num_threads=1))


async def test_it_answers_after_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray sends requests when the app has started: the models are loaded, and the health check passes."""
    monkeypatch.setattr("vectord.observability.logs.configure", lambda telemetry: None)
    replica = Replica(config())
    app = replica.__serve_build_asgi_app__()
    async with app.router.lifespan_context(app):
        await replica.check_health()
        before = await replica.record_autoscaling_stats()
        assert before[WAITING_TOKENS] == 0
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://replica") as client:
            answer = await client.post("/v1/embeddings", json={"input": ["one", "two"]})
        assert len(answer.json()["data"]) == 2
        assert (await replica.record_autoscaling_stats())[BUSY] > before[BUSY]


async def test_without_a_model_it_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray reports it to the operator and sends no requests."""
    monkeypatch.setattr("vectord.observability.logs.configure", lambda telemetry: None)
    monkeypatch.setattr("vectord.compute.backends.fake.load", failing)
    replica = Replica(config())
    app = replica.__serve_build_asgi_app__()
    with pytest.raises(NotReady, match="no model"):
        async with app.router.lifespan_context(app):
            pass
    with pytest.raises(NotReady):
        await replica.check_health()


def failing(*given: object) -> None:
    raise OSError("no such device")


async def test_it_reports_its_queued_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray scales by them."""
    monkeypatch.setattr("vectord.observability.logs.configure", lambda telemetry: None)
    replica = Replica(config())
    app = replica.__serve_build_asgi_app__()
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://replica", timeout=60) as client:
            asked = asyncio.gather(
                *(
                    client.post("/v1/embeddings", json={"input": [f"text {i} {j} " * 80 for j in range(64)]})
                    for i in range(24)
                )
            )
            seen = 0.0
            while not seen and not asked.done():
                await asyncio.sleep(0.001)
                seen = (await replica.record_autoscaling_stats())[WAITING_TOKENS]
            await asked
    assert seen > 0
