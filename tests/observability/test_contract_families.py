"""The metrics that dashboards query: name, type and labels of each family, of this server and of imitated products.

The tables come from the documents and sources of those products. The tests read pages of the whole app with
Prometheus's parsers of both formats.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open_metrics
from prometheus_client.parser import text_string_to_metric_families as read_text
from prometheus_client.samples import Sample

from vectord import compose
from vectord.config import Config, DeviceConfig, ServerConfig

Family: TypeAlias = tuple[Literal["counter", "gauge", "histogram"], set[str]]

# models_loaded_total is a gauge; te_* counters lack _total.
SMART_EMBEDDER: dict[str, Family] = {
    "embedding_requests_total": ("counter", {"endpoint", "status"}),
    "embedding_requests_rejected_total": ("counter", {"reason"}),
    "embedding_sentences_processed_total": ("counter", set()),
    "embedding_request_duration_seconds": ("histogram", {"endpoint"}),
    "embedding_batch_size": ("histogram", set()),
    "embedding_gpu_inference_duration_seconds": ("histogram", set()),
    "embedding_queue_size": ("gauge", set()),
    "embedding_active_requests": ("gauge", set()),
    "embedding_gpu_memory_allocated_bytes": ("gauge", set()),
    "embedding_gpu_memory_reserved_bytes": ("gauge", set()),
    "embedding_server_info": (
        "gauge",
        {
            "model",
            "dense_embedding_model",
            "bge_embed_max_length",
            "qwen_embed_max_length",
            "bge_rerank_max_length",
            "qwen_rerank_max_length",
            "version",
            "gpu_available",
            "device",
        },
    ),
    "gpu_memory_allocated_bytes": ("gauge", set()),
    "gpu_memory_reserved_bytes": ("gauge", set()),
    "gpu_memory_free_bytes": ("gauge", set()),
    "gpu_memory_total_bytes": ("gauge", set()),
    "rerank_requests_total": ("counter", {"status"}),
    "rerank_requests_rejected_total": ("counter", {"reason"}),
    "rerank_pairs_processed_total": ("counter", set()),
    "rerank_request_duration_seconds": ("histogram", set()),
    "rerank_inference_duration_seconds": ("histogram", set()),
    "rerank_active_requests": ("gauge", set()),
}
SIMPLE_INFERENCE_SERVER: dict[str, Family] = {
    "embedding_requests_total": ("counter", {"model", "status"}),
    "embedding_cache_hits_total": ("counter", {"model"}),
    "embedding_cache_misses_total": ("counter", {"model"}),
    "embedding_request_latency_seconds": ("histogram", {"model"}),
    "embedding_queue_rejections_total": ("counter", set()),
}
SEMANTIC_EXPLORER: dict[str, Family] = {
    "inference_embed_requests_total": ("counter", {"model", "status"}),
    "inference_embed_duration_seconds": ("histogram", {"model"}),
    "inference_embed_items_total": ("counter", {"model"}),
    "inference_embed_per_item_duration_seconds": ("histogram", {"model"}),
    "inference_rerank_requests_total": ("counter", {"model", "status"}),
    "inference_rerank_duration_seconds": ("histogram", {"model"}),
    "inference_rerank_documents_total": ("counter", {"model"}),
    "model_load_duration_seconds": ("gauge", {"model"}),
    "model_memory_bytes": ("gauge", {"model"}),
    "models_loaded_total": ("gauge", set()),
    "gpu_memory_used_bytes": ("gauge", set()),
    "gpu_memory_total_bytes": ("gauge", set()),
    "gpu_utilization_percent": ("gauge", set()),
    "cpu_usage_percent": ("gauge", set()),
}
TEI: dict[str, Family] = {
    "te_request_count": ("counter", {"method"}),
    "te_request_success": ("counter", {"method"}),
    "te_request_failure": ("counter", {"err"}),
    "te_request_duration": ("histogram", set()),
    "te_request_tokenization_duration": ("histogram", set()),
    "te_request_queue_duration": ("histogram", set()),
    "te_request_inference_duration": ("histogram", set()),
    "te_request_input_length": ("histogram", set()),
    "te_embed_count": ("counter", set()),
    "te_embed_success": ("counter", set()),
    "te_embed_duration": ("histogram", set()),
    "te_embed_tokenization_duration": ("histogram", set()),
    "te_embed_queue_duration": ("histogram", set()),
    "te_embed_inference_duration": ("histogram", set()),
    "te_predict_count": ("counter", set()),
    "te_predict_success": ("counter", set()),
    "te_predict_duration": ("histogram", set()),
    "te_predict_tokenization_duration": ("histogram", set()),
    "te_predict_queue_duration": ("histogram", set()),
    "te_predict_inference_duration": ("histogram", set()),
    "te_queue_size": ("gauge", set()),
    "te_batch_next_size": ("histogram", set()),
    "te_batch_next_tokens": ("histogram", set()),
}
OWN: dict[str, Family] = {
    "vectord_requests_total": ("counter", {"dialect", "route", "status"}),
    "vectord_requests_rejected_total": ("counter", {"reason"}),
    "vectord_requests_under_way": ("gauge", set()),
    "vectord_tokens_total": ("counter", {"model"}),
    "vectord_queue_tokens": ("gauge", set()),
    "vectord_queue_texts": ("gauge", set()),
    "vectord_lane_queue_tokens": ("gauge", {"lane"}),
    "vectord_queue_wait_seconds": ("histogram", set()),
    "vectord_queue_clearing_seconds": ("gauge", set()),
    "vectord_saturation": ("gauge", set()),
    "vectord_batch_tokens": ("histogram", set()),
    "vectord_batch_texts": ("histogram", set()),
    "vectord_batch_fill": ("histogram", set()),
    "vectord_forward_duration_seconds": ("histogram", set()),
    "vectord_forward_tokens_total": ("counter", {"model", "lane"}),
    "vectord_padding_tokens_total": ("counter", {"model"}),
    "vectord_cache_hits_total": ("counter", {"model"}),
    "vectord_cache_misses_total": ("counter", {"model"}),
    "vectord_cache_bytes": ("gauge", set()),
    "vectord_cache_limit_bytes": ("gauge", set()),
    "vectord_cache_texts": ("gauge", set()),
    "vectord_model_ready": ("gauge", {"model"}),
    "vectord_model_failed": ("gauge", {"model"}),
    "vectord_model_memory_bytes": ("gauge", {"model"}),
    "vectord_build_info": ("gauge", {"version", "python"}),
}
LATER: dict[str, Family] = {  # whose labels only events bring
    "vectord_request_duration_seconds": ("histogram", {"dialect"}),
    "vectord_requests_failed_total": ("counter", {"error"}),
    "vectord_device_tokens_total": ("counter", {"model", "device"}),
    "vectord_device_ready": ("gauge", {"model", "device"}),
    "vectord_key_requests_total": ("counter", {"key"}),
    "vectord_key_tokens_total": ("counter", {"key"}),
    "vectord_key_answers_total": ("counter", {"key", "status"}),
}
PRODUCTS: dict[str, dict[str, Family]] = {
    "": {},
    "smart_embedder": SMART_EMBEDDER,
    "simple_inference_server": SIMPLE_INFERENCE_SERVER,
    "semantic_explorer": SEMANTIC_EXPLORER,
    "tei": TEI,
    "embedding_server": TEI,
}
PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"}

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@dataclass(frozen=True)
class Scrapes:
    """/metrics of a server that imitates a product, before its first request and after several."""

    product: str
    fresh: httpx.Response
    used: httpx.Response
    open_metrics: httpx.Response


async def scrape(product: str) -> Scrapes:
    config = Config(device=DeviceConfig(backend="fake"), server=ServerConfig(imitates=product or None))
    composed = compose.build(config)
    transport = httpx.ASGITransport(composed.app)
    async with (
        composed.app.router.lifespan_context(composed.app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
    ):
        await composed.engine.loaded.wait()
        await client.get("/health/ready")  # a probe, as before each server's first request
        fresh = await client.get("/metrics")
        traceparent = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
        await client.post("/v1/embeddings", json={"model": MODEL, "input": ["a b", "c"]}, headers=traceparent)
        await client.post("/v1/embeddings", json={"model": "no such model", "input": "a"})
        await client.post("/v1/embeddings", json={"model": MODEL, "input": []})
        await client.post("/embeddings/", json={"input": ["d"]})
        await client.post("/rerank", json={"query": "a", "texts": ["b", "c", "d"]})
        open_metrics = await client.get("/metrics", headers={"accept": "application/openmetrics-text;version=1.0.0"})
        return Scrapes(product, fresh, await client.get("/metrics"), open_metrics)


@pytest.fixture(scope="module", params=PRODUCTS, ids=lambda product: product or "none")
def scrapes(request: pytest.FixtureRequest) -> Scrapes:
    return asyncio.run(scrape(request.param))


def types(scrape: httpx.Response) -> dict[str, str]:
    """Name -> type."""
    lines = [line.split() for line in scrape.text.splitlines() if line.startswith("# TYPE")]
    assert len({line[2] for line in lines}) == len(lines), "a family comes twice"
    return {line[2]: line[3] for line in lines}


def samples(scrape: httpx.Response, read: object = read_text) -> dict[str, list[Sample]]:
    """Name without the suffixes of a histogram -> samples."""
    found: dict[str, list[Sample]] = {}
    for family in read(scrape.text):  # type: ignore[operator]
        for sample in family.samples:
            name = family.name if family.type == "histogram" else sample.name
            if name.startswith("te_"):  # the parser appends it to every counter's name
                name = name.removesuffix("_total")
            found.setdefault(name, []).append(sample)
    return found


def value(scrape: httpx.Response, name: str, **labels: str) -> float:
    """The value of the sample with these labels."""
    every = [sample for each in samples(scrape).values() for sample in each]
    (found,) = [sample.value for sample in every if sample.name == name and sample.labels == labels]
    return found


def test_the_page_has_this_servers_families_and_the_imitated_products(scrapes: Scrapes) -> None:
    """All of them before the first request, so that a dashboard on a fresh server has no gaps; no other product's."""
    families = PRODUCTS[scrapes.product] | OWN | LATER
    shown = types(scrapes.fresh)
    assert {name: shown.get(name) for name in families} == {name: kind for name, (kind, _) in families.items()}
    own = ("vectord_", "process_")
    assert {name for name in shown if not name.startswith(own)} == set(PRODUCTS[scrapes.product])
    assert set(shown) >= PROCESS
    assert "_created" not in scrapes.fresh.text
    assert scrapes.fresh.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_a_family_has_its_labels_and_series_from_the_start(scrapes: Scrapes) -> None:
    """Exactly these labels, according to Prometheus's own parser: a sum over them must not count twice."""
    for name, (_, labels) in (PRODUCTS[scrapes.product] | OWN).items():
        found = samples(scrapes.fresh)[name]
        assert {frozenset(sample.labels) - {"le"} for sample in found} == {frozenset(labels)}, name


# Series that a product's dashboards name, at zero before the first request.
AT_ZERO = {
    "smart_embedder": [
        'embedding_requests_rejected_total{reason="rate_limit"} 0.0',
        'embedding_requests_rejected_total{reason="backpressure"} 0.0',
        'embedding_requests_rejected_total{reason="auth"} 0.0',
        'rerank_requests_rejected_total{reason="rate_limit"} 0.0',
        'rerank_requests_rejected_total{reason="backpressure"} 0.0',
        'rerank_requests_total{status="error"} 0.0',
        "embedding_queue_size 0.0",
        "gpu_memory_total_bytes 0.0",
    ],
    "semantic_explorer": [
        "models_loaded_total 1.0",
        "gpu_memory_total_bytes 0.0",
        f'inference_rerank_requests_total{{model="{MODEL}",status="failure"}} 0.0',
    ],
    "tei": ['te_request_failure{err="missing_values"} 0.0', 'te_request_failure{err="queue_full"} 0.0'],
}


def test_series_that_dashboards_name_exist_at_zero(scrapes: Scrapes) -> None:
    """With these exact words."""
    assert set(AT_ZERO.get(scrapes.product, ())) <= set(scrapes.fresh.text.splitlines())
    if scrapes.product == "smart_embedder":
        info = samples(scrapes.fresh)["embedding_server_info"][0]
        assert (info.value, info.labels["gpu_available"], info.labels["device"]) == (1, "False", "cpu")
        assert info.labels["bge_embed_max_length"] == "8192"


# (name, labels) -> value after two answered requests for vectors, one for an unknown model, one that was invalid, one
# to rerank.
COUNTED: dict[str, list[tuple[str, dict[str, str], float]]] = {
    "": [("vectord_requests_failed_total", {"error": "ModelNotFound"}, 1)],
    "smart_embedder": [
        ("embedding_requests_total", {"endpoint": "/v1/embeddings", "status": "success"}, 1),
        ("embedding_requests_total", {"endpoint": "/embeddings", "status": "success"}, 1),
        ("embedding_requests_total", {"endpoint": "/v1/embeddings", "status": "error"}, 1),
        ("embedding_sentences_processed_total", {}, 3),
        ("rerank_requests_total", {"status": "success"}, 1),
        ("rerank_pairs_processed_total", {}, 3),
        ("embedding_active_requests", {}, 0),
        ("rerank_active_requests", {}, 0),
    ],
    "simple_inference_server": [
        ("embedding_requests_total", {"model": MODEL, "status": "200"}, 1),
        ("embedding_requests_total", {"model": "", "status": "404"}, 1),
        ("embedding_request_latency_seconds_count", {"model": MODEL}, 2),
    ],
    "semantic_explorer": [
        ("inference_embed_requests_total", {"model": MODEL, "status": "success"}, 2),
        ("inference_embed_items_total", {"model": MODEL}, 3),
        ("inference_rerank_documents_total", {"model": MODEL}, 3),
    ],
    "tei": [
        ("te_embed_duration_count", {}, 3),
        ("te_predict_duration_count", {}, 3),
        ("te_request_input_length_count", {}, 6),
    ],
}


def test_requests_are_counted(scrapes: Scrapes) -> None:
    used = scrapes.used
    for name, labels, expected in COUNTED.get(scrapes.product, ()):
        assert value(used, name, **labels) == expected, name
    assert value(used, "vectord_cache_texts") > 0
    assert 0 < value(used, "vectord_saturation") <= 1


def test_open_metrics_has_the_same_families_and_exemplars(scrapes: Scrapes) -> None:
    """Prometheus requests this format by default. TEI's names do not change in it."""
    shown = scrapes.open_metrics
    assert shown.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert not re.search(r"^te_\w+_total", shown.text, re.MULTILINE)
    found = samples(shown, read_open_metrics)
    assert set(found) >= set(PRODUCTS[scrapes.product] | OWN)
    exemplars = [sample.exemplar for sample in found["vectord_request_duration_seconds"] if sample.exemplar]
    assert [exemplar.labels for exemplar in exemplars] == [{"trace_id": TRACE}]
    assert "trace_id" not in scrapes.used.text
