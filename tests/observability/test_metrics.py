"""What Prometheus reads."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from vectord.config import ServerConfig
from vectord.engine.events import BatchRan, CacheLookedUp, ModelStateChanged, RequestEnded
from vectord.observability.exchange import Exchange
from vectord.observability.metrics import Metrics
from vectord.products.simple_inference_server.metrics import SimpleInferenceServerMetrics
from vectord.products.smart_embedder.metrics import SmartEmbedderMetrics
from vectord.products.tei.metrics import TeiMetrics
from vectord.schema import Caller, TextLengths, Timings

ANYONE = Caller(client="10.0.0.1", route="/v1/embeddings")
TIMES = Timings(tokenizing_s=0.001, first_s=0.004, last_s=0.024, ended_s=0.03)


def report(model: str, operation: str, error: str | None = None, texts: int = 0, tokens: int = 0) -> RequestEnded:
    lengths = TextLengths([tokens // texts] * texts if texts else ())
    times = TIMES if error is None else Timings(ended_s=0.01)
    return RequestEnded(
        caller=ANYONE,
        operation=operation,
        model=model,
        error=error,
        texts=texts,
        tokens=tokens,
        lengths=lengths,
        timings=times,
    )


def batch(**changes: Any) -> BatchRan:
    facts = {"texts": 17, "tokens": 912, "padding_tokens": 0, "bulk_tokens": 0, "max_tokens": 1824, "scores": False}
    return BatchRan(
        **{"model": "m", "device": "cpu", "seconds": 0.02, "streams": 1, "failed": False, **facts, **changes}
    )


def exchange(dialect: str, route: str, status: int, seconds: float, **more: str) -> Exchange:
    return Exchange(
        method="POST",
        dialect=dialect,
        route=route,
        status=status,
        request_id="id-1",
        began_s=100.0,
        ended_s=100.0 + seconds,
        **more,  # type: ignore[arg-type]
    )


def page(metrics: Metrics) -> str:
    return asyncio.run(metrics.exposition())[0].decode()


def samples(metrics: Metrics) -> dict[str, float]:
    """Every line of the exposition, as name{labels} -> value."""
    lines = page(metrics).splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def test_a_failed_model_differs_from_an_unloaded_one() -> None:
    """Neither is ready; only the first has failed, until it loads."""
    metrics = Metrics("0")
    for state, ready, failed in [("unloaded", 0, 0), ("loading", 0, 0), ("failed", 0, 1), ("ready", 1, 0)]:
        metrics.observe(ModelStateChanged("m", state))
        shown = samples(metrics)
        assert (shown['vectord_model_ready{model="m"}'], shown['vectord_model_failed{model="m"}']) == (ready, failed)


def test_engine_events_become_metrics() -> None:
    """Tokens, batches, cache and readiness, in our families and TEI's."""
    metrics = Metrics("0", TeiMetrics())
    metrics.observe(ModelStateChanged("m", "loading"))
    metrics.observe(ModelStateChanged("m", "ready", 0.5))
    metrics.observe(report("m", "embed", None, 1, 12))
    metrics.observe(report("m", "embed", None, 16, 900))
    metrics.observe(report("m", "tokenize", None, 1, 5))
    metrics.observe(report("m", "embed", "Overloaded"))
    metrics.observe(report("", "embed", "ModelNotFound"))
    metrics.observe(report("m", "embed", "Cancelled"))
    metrics.observe(report("m", "rerank", None, 3, 30))
    metrics.observe(report("m", "classify", None, 1, 5))
    metrics.observe(batch())
    metrics.observe(CacheLookedUp(model="m", hits=1, misses=16))
    metrics.observe(CacheLookedUp(model="m", hits=5, misses=11, shared=True))
    shown = samples(metrics)
    assert shown['vectord_tokens_total{model="m"}'] == 952
    assert shown['vectord_model_ready{model="m"}'] == 1
    assert (shown["vectord_batch_texts_sum"], shown["vectord_batch_tokens_sum"]) == (17, 912)
    assert shown['te_batch_next_size_bucket{le="16.0"}'] == 0
    assert shown['te_batch_next_size_bucket{le="32.0"}'] == 1
    assert shown['vectord_cache_hits_total{model="m"}'] == 1
    assert shown['vectord_cache_misses_total{model="m"}'] == 16
    assert shown['vectord_shared_cache_hits_total{model="m"}'] == 5
    assert shown['vectord_shared_cache_misses_total{model="m"}'] == 11
    assert shown['te_request_count{method="single"}'] == 5
    assert shown['te_request_count{method="batch"}'] == 2
    assert shown['te_request_success{method="single"}'] == 2
    assert shown['te_request_failure{err="overloaded"}'] == 1
    assert shown['te_request_failure{err="validation"}'] == 1
    assert shown['te_request_failure{err="dropped"}'] == 1
    assert (shown["te_embed_count"], shown["te_embed_success"]) == (17, 17)
    assert (shown["te_predict_count"], shown["te_predict_success"]) == (4, 4)
    assert shown["te_request_duration_count"] == 4
    assert shown["te_request_queue_duration_sum"] == pytest.approx(0.016)


def test_only_named_keys_become_labels() -> None:
    """An address as a label would be one series per client; requests without a named key are part of the sums only."""
    metrics = Metrics("0")
    for caller in (ANYONE, Caller(client="search", named=True)):
        metrics.observe(RequestEnded(caller=caller, operation="embed", model="m", texts=1, tokens=7))
    shown = samples(metrics)
    assert [name for name in shown if "vectord_key_" in name] == [
        'vectord_key_requests_total{key="search"}',
        'vectord_key_tokens_total{key="search"}',
    ]
    assert shown['vectord_key_tokens_total{key="search"}'] == 7
    assert "10.0.0.1" not in page(metrics)


def test_open_metrics_do_not_name_keys() -> None:
    """compose.py leaves them out unless /metrics has a key or a port of its own."""
    metrics = Metrics("1.2.3", names_keys=ServerConfig().metrics_are_private)
    metrics.watch_keys(lambda: ["search"])
    metrics.observe(RequestEnded(caller=Caller(client="search", named=True), operation="embed", model="m", tokens=7))
    metrics.observe(exchange("d", "/r", 200, 0.1, key="search"))
    assert "search" not in page(metrics)
    assert ServerConfig(metrics_key="k").metrics_are_private
    assert ServerConfig(prometheus_port=0).metrics_are_private


def test_the_keys_of_the_file_are_shown_from_the_start() -> None:
    """At zero, with their refusals; a key that is added to the file appears with the next scrape."""
    metrics, names = Metrics("0"), ["search"]
    metrics.watch_keys(lambda: names)
    answers = [f'vectord_key_answers_total{{key="search",status="{status}"}}' for status in (200, 429)]
    shown = samples(metrics)
    assert [shown[name] for name in answers] == [0, 0]
    metrics.observe(exchange("openai", "/v1/embeddings", 429, 0.1, key="search"))
    metrics.observe(exchange("openai", "/v1/embeddings", 401, 0.1))  # without a named key
    names.append("crawler")
    shown = samples(metrics)
    assert [shown[name] for name in answers] == [0, 1]
    assert shown['vectord_key_tokens_total{key="crawler"}'] == 0
    assert sum(value for name, value in shown.items() if "vectord_key_answers" in name) == 1


def test_refusals_are_counted_as_each_product_counts_them() -> None:
    """Overload: Smart Embedder counts a rerank as an error as well, and no embedding. A wrong key always counts
    as an embedding."""
    smart, simple = Metrics("0", SmartEmbedderMetrics({})), Metrics("0", SimpleInferenceServerMetrics())
    for event in (
        exchange("tei", "/rerank", 429, 0.1, error="RateLimited"),
        exchange("tei", "/embeddings", 429, 0.1, error="RateLimited"),
        exchange("tei", "/rerank", 401, 0.1, error="Unauthorized"),
        report("m", "embed", "Overloaded"),
        report("m", "rerank", "Overloaded"),
        report("m", "rerank", "TimedOut"),
        report("m", "embed", "InputTooLong"),
    ):
        smart.observe(event)
        simple.observe(event)
    shown = samples(smart)
    rejected = {name: count for name, count in shown.items() if "_rejected_total" in name and count}
    assert rejected == {
        'vectord_requests_rejected_total{reason="auth"}': 1,
        'vectord_requests_rejected_total{reason="rate_limit"}': 2,
        'vectord_requests_rejected_total{reason="backpressure"}': 2,
        'embedding_requests_rejected_total{reason="rate_limit"}': 1,
        'embedding_requests_rejected_total{reason="backpressure"}': 1,
        'embedding_requests_rejected_total{reason="auth"}': 1,
        'rerank_requests_rejected_total{reason="rate_limit"}': 1,
        'rerank_requests_rejected_total{reason="backpressure"}': 1,
    }
    assert shown['rerank_requests_total{status="error"}'] == 1
    assert shown['rerank_requests_total{status="timeout"}'] == 1
    assert samples(simple)["embedding_queue_rejections_total"] == 1
    for each in (shown, samples(simple)):
        assert not any(count for name, count in each.items() if name.startswith("embedding_requests_total"))
