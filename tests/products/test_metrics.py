"""Metrics of other products: their buckets, their names for errors, and the memory of GPUs under several names."""

from __future__ import annotations

import time

import pytest
from tests.engine.fakes import CROSS_ENCODER, M3, backend_for, serving

from vectord.engine.events import RequestEnded
from vectord.errors import InputTooLong
from vectord.observability.exchange import Exchange
from vectord.observability.instruments import Gauge, Histogram, Snapshot
from vectord.observability.metrics import Metrics
from vectord.products.semantic_explorer.metrics import SemanticExplorerMetrics
from vectord.products.simple_inference_server.metrics import SimpleInferenceServerMetrics
from vectord.products.smart_embedder.metrics import SmartEmbedderMetrics
from vectord.products.tei.metrics import SECONDS as TEI_SECONDS
from vectord.products.tei.metrics import TeiMetrics
from vectord.schema import Caller, DeviceMemory, EmbedRequest, Gauges, RerankRequest

REQUESTS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
FORWARDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5)
BUCKETS = {
    "embedding_request_duration_seconds": REQUESTS,
    "embedding_batch_size": (1, 2, 4, 8, 16, 32, 64, 128, 256),
    "embedding_gpu_inference_duration_seconds": FORWARDS,
    "rerank_request_duration_seconds": REQUESTS,
    "rerank_inference_duration_seconds": FORWARDS,
    "embedding_request_latency_seconds": (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
}
DEVICES = {
    "cuda:0": DeviceMemory(allocated=1, reserved=20, free=300, total=4000),
    "cuda:1": DeviceMemory(allocated=2, reserved=30, free=500, total=7000),
}


def test_buckets_are_those_of_the_product() -> None:
    """A quantile on a product's dashboard depends on them. TEI has 35 from 15 us, each 1.5 times the last."""
    families = (SmartEmbedderMetrics({}), SimpleInferenceServerMetrics())
    shown = {one.name: one.bounds for each in families for one in each.instruments() if isinstance(one, Histogram)}
    assert {name: shown[name] for name in BUCKETS} == BUCKETS
    assert (len(TEI_SECONDS), TEI_SECONDS[0]) == (35, 0.000015)
    assert TEI_SECONDS[34] == pytest.approx(14.55, rel=0.01)


@pytest.mark.parametrize(
    ("error", "name"),
    [
        ("TooManyCharacters", "validation"),
        ("TooManyInputs", "batch_size"),
        ("ShuttingDown", "overloaded"),
        ("OutOfMemory", "inference"),
    ],
)
def test_a_failed_request_has_teis_name_of_its_error(error: str, name: str) -> None:
    """That of the class, or of its base."""
    families = TeiMetrics()
    families.request_ended(RequestEnded(operation="embed", caller=Caller(), error=error))
    assert families.failure.values[(name,)] == 1


@pytest.mark.parametrize(
    ("route", "series"),
    [
        ("/embeddings", 'embedding_requests_total{endpoint="/embeddings",status="error"}'),
        ("/rerank", 'rerank_requests_total{status="error"}'),
    ],
)
def test_smart_embedder_counts_an_empty_input_as_an_error(route: str, series: str) -> None:
    """Its panel of the error rate shows these 400s. Other products' empty inputs, and other invalid bodies, are not
    counted."""
    families = SmartEmbedderMetrics({})
    for dialect, error in (("smart_embedder", "EmptyInput"), ("tei", "EmptyInput"), ("smart_embedder", "WrongType")):
        families.http_answered(exchange(dialect, route, error))
    pages = "".join(one.text(in_open_metrics=False) for one in families.instruments())
    shown = dict(line.rsplit(" ", 1) for line in pages.splitlines() if not line.startswith("#"))
    assert float(shown[series]) == 1


def test_smart_embedders_memory_gauges_are_sums_under_two_names() -> None:
    """Its first version's names are copies, which older dashboards read."""
    families = SmartEmbedderMetrics({})
    families.look(snapshot(DEVICES))
    gauges = [one for one in families.instruments() if isinstance(one, Gauge) and "gpu_memory" in one.name]
    assert {gauge.name: gauge.values[()] for gauge in gauges} == {
        "gpu_memory_allocated_bytes": 3,
        "gpu_memory_reserved_bytes": 50,
        "gpu_memory_free_bytes": 800,
        "gpu_memory_total_bytes": 11_000,
        "embedding_gpu_memory_allocated_bytes": 3,
        "embedding_gpu_memory_reserved_bytes": 50,
    }


def test_smart_embedders_queue_counts_requests() -> None:
    """Queued requests for vectors, as the engine counts them at the scrape."""
    families = SmartEmbedderMetrics({})
    families.look(snapshot({}))
    assert families.queue.values[()] == 2
    assert (families.active.values[()], families.rerank_active.values[()]) == (1, 0)


async def test_smart_embedders_figures_count_embedding_only() -> None:
    """Answered requests, their texts and batches; neither the self-test nor reranks. A refusal counts for both, a wrong
    key for none."""
    metrics, models = Metrics("0", SmartEmbedderMetrics({})), [M3, CROSS_ENCODER]
    backends = [backend_for(model) for model in models]
    async with serving(*backends, models=models, cache_bytes=0, observer=metrics.observe) as engine:
        metrics.watch(engine.gauges, lambda: engine.models().models)
        for inputs in (["a", "b"], ["c"]):
            await engine.answer(EmbedRequest(inputs=inputs), Caller())
        await engine.answer(RerankRequest(query="q", passages=["a"], model="m1"), Caller())
        with pytest.raises(InputTooLong):
            await engine.answer(EmbedRequest(inputs=["x" * 100]), Caller())
        for operation in ("embed", "rerank"):
            metrics.observe(RequestEnded(operation=operation, caller=Caller(), error="QueueTimedOut"))
        for error, route in (("RateLimited", "/rerank"), ("RateLimited", "/embeddings"), ("Unauthorized", "/rerank")):
            metrics.observe(exchange("smart_embedder", route, error))
        shown = await metrics.figures("product")
    assert shown == {
        "uptime": "0h 0m 0s",
        "uptime_seconds": 0,
        "total_requests": 2,
        "total_sentences": 3,
        "total_batches": 2,
        "rejected_requests": 4,
        "hardware": "CPU",
    }


def test_the_hours_of_smart_embedders_uptime_continue_above_24(monkeypatch: pytest.MonkeyPatch) -> None:
    families = SmartEmbedderMetrics({})
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s + 90_187)
    assert families.figures(())["uptime"] == "25h 3m 7s"


def test_semantic_explorers_gauge_is_all_memory_in_use() -> None:
    """By any process. The GPU's busy share is shown only if there is a GPU."""
    families = SemanticExplorerMetrics()
    families.look(snapshot(DEVICES))
    assert (families.gpu_used.values[()], families.gpu_percent.values[()]) == (10_200, 25)
    families.look(snapshot({}))
    assert (families.gpu_used.values[()], families.gpu_percent.values[()]) == (0, 0)


@pytest.mark.parametrize(
    ("path", "dialect", "error", "embeds", "reranks"),
    [
        ("/embed", "semantic_explorer", "MissingField", 1, 0),
        ("/api/embed/batch", "semantic_explorer", "MalformedBody", 1, 0),
        ("/api/rerank", "semantic_explorer", "WrongType", 0, 1),
        ("/api/rerank", "semantic_explorer", "ModelNotFound", 0, 0),
        ("/embed", "tei", "MissingField", 0, 0),
    ],
)
def test_semantic_explorer_counts_malformed_bodies_as_failures(
    path: str, dialect: str, error: str, embeds: int, reranks: int
) -> None:
    """Other errors reach the engine, which reports them."""
    families = SemanticExplorerMetrics()
    families.handlers()[Exchange](exchange(dialect, path, error))
    found = (families.embeds.values.get(("", "failure"), 0), families.reranks.values.get(("", "failure"), 0))
    assert found == (embeds, reranks)


def exchange(dialect: str, route: str, error: str) -> Exchange:
    return Exchange(method="POST", dialect=dialect, route=route, status=400, request_id="r", began_s=0, error=error)


def snapshot(devices: dict[str, DeviceMemory]) -> Snapshot:
    gauges = Gauges(
        queued_texts=2,
        queued_tokens={},
        active={"embed": 1},
        wait_s=0.0,
        queued_embeds=2,
        max_wait_s=10.0,
        under_way=0,
        places=8,
        cached_texts=0,
        cache_bytes=0,
        cache_limit_bytes=0,
        memory_bytes={},
        devices=devices,
    )
    return Snapshot(gauges, (), busy_share=0.25)
