"""What Prometheus reads."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from vectord.engine.observer import Observer
from vectord.errors import VectordError
from vectord.schema import Timings
from vectord.telemetry.instruments import Histogram
from vectord.telemetry.metrics import TEI_FAILURES, TEI_SECONDS, Metrics

OWN = {
    "vectord_requests_total": "counter",
    "vectord_request_duration_seconds": "histogram",
    "vectord_tokens_total": "counter",
    "vectord_queue_tokens": "gauge",
    "vectord_queue_texts": "gauge",
    "vectord_batch_tokens": "histogram",
    "vectord_batch_texts": "histogram",
    "vectord_forward_duration_seconds": "histogram",
    "vectord_cache_hits_total": "counter",
    "vectord_cache_misses_total": "counter",
    "vectord_model_ready": "gauge",
    "vectord_build_info": "gauge",
}
TEI = {
    "te_request_count": "counter",
    "te_request_success": "counter",
    "te_request_failure": "counter",
    "te_embed_count": "counter",
    "te_embed_success": "counter",
    "te_predict_count": "counter",
    "te_predict_success": "counter",
    "te_request_duration": "histogram",
    "te_request_tokenization_duration": "histogram",
    "te_request_queue_duration": "histogram",
    "te_request_inference_duration": "histogram",
    "te_queue_size": "gauge",
    "te_batch_next_size": "histogram",
    "te_batch_next_tokens": "histogram",
}


def samples(metrics: Metrics) -> dict[str, float]:
    """Every line of the exposition, as name{labels} -> value."""
    lines = metrics.exposition().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def test_every_family_is_there_before_anything_happens() -> None:
    """Names and types as contracts have them; a dashboard built on a fresh server shows no holes."""
    text = Metrics("1.2.3").exposition().decode()
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    assert types | OWN | TEI == types
    assert {"process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"} <= set(types)
    assert "_created" not in text
    assert len(re.findall(r"^# HELP", text, re.MULTILINE)) == len(types)


def test_the_exposition_can_be_parsed() -> None:
    """By the library's own reader of the format."""
    metrics = Metrics("1.2.3")
    metrics.model_changed('odd"na\\me\n', "ready", 1.0)
    families = {family.name for family in text_string_to_metric_families(metrics.exposition().decode())}
    assert {"vectord_requests", "te_request_count", "te_batch_next_size"} <= families


def test_series_start_at_zero() -> None:
    """Routes, models and TEI's labels are shown before their first event, so that rate() sees it."""
    metrics = Metrics("1.2.3")
    metrics.expect_routes([("openai", "/v1/embeddings")])
    metrics.model_changed("m", "loading", None)
    shown = samples(metrics)
    assert shown['vectord_requests_total{dialect="openai",route="/v1/embeddings",status="200"}'] == 0
    assert shown['vectord_tokens_total{model="m"}'] == 0
    assert shown['vectord_cache_hits_total{model="m"}'] == 0
    assert shown['vectord_model_ready{model="m"}'] == 0
    assert shown['te_request_count{method="single"}'] == 0
    assert shown['te_request_count{method="batch"}'] == 0
    assert shown['te_request_failure{err="overloaded"}'] == 0
    assert re.match(r"\d+\.\d+", platform_python(shown))


def platform_python(shown: dict[str, float]) -> str:
    (name,) = [name for name in shown if name.startswith("vectord_build_info")]
    assert 'version="1.2.3"' in name
    found = re.search(r'python="([^"]+)"', name)
    assert found is not None
    return found[1]


def test_http_answers_are_counted_and_timed() -> None:
    """By dialect, route and status; time by dialect and route."""
    metrics = Metrics("0")
    for status, seconds in [(200, 0.001), (200, 0.3), (429, 0.0001)]:
        metrics.http_answered("openai", "/v1/embeddings", status, seconds)
    shown = samples(metrics)
    assert shown['vectord_requests_total{dialect="openai",route="/v1/embeddings",status="200"}'] == 2
    assert shown['vectord_requests_total{dialect="openai",route="/v1/embeddings",status="429"}'] == 1
    labels = 'dialect="openai",le="0.001",route="/v1/embeddings"'
    assert shown[f"vectord_request_duration_seconds_bucket{{{labels}}}"] == 2
    assert shown['vectord_request_duration_seconds_count{dialect="openai",route="/v1/embeddings"}'] == 3


def test_what_the_engine_tells() -> None:
    """Tokens of answers, queue, batches, cache and readiness; TEI's families beside our own."""
    metrics: Metrics = Metrics("0")
    observer: Observer = metrics
    observer.model_changed("m", "loading", None)
    observer.model_changed("m", "ready", 0.5)
    times = Timings(tokenize_s=0.001, queue_s=0.002, inference_s=0.02, total_s=0.03)
    observer.request_answered("m", "embed", None, 1, 12, times)
    observer.request_answered("m", "embed", None, 16, 900, times)
    observer.request_answered("m", "tokenize", None, 1, 5, times)
    observer.request_answered("m", "embed", "Overloaded", 0, 0, Timings())
    observer.request_answered("", "embed", "ModelNotFound", 0, 0, Timings())
    observer.request_answered("m", "embed", "Cancelled", 0, 0, Timings())
    observer.request_answered("m", "rerank", None, 3, 30, times)
    observer.request_answered("m", "classify", None, 1, 5, times)
    observer.batch_ran("m", 17, 912, 0.02, failed=False)
    observer.queue_changed(3, 200)
    observer.cache_looked_up("m", 1, 16)
    shown = samples(metrics)
    assert shown['vectord_tokens_total{model="m"}'] == 952
    assert shown['vectord_model_ready{model="m"}'] == 1
    assert (shown["vectord_queue_texts"], shown["vectord_queue_tokens"], shown["te_queue_size"]) == (3, 200, 3)
    assert (shown["vectord_batch_texts_sum"], shown["vectord_batch_tokens_sum"]) == (17, 912)
    assert shown['te_batch_next_size_bucket{le="16.0"}'] == 0
    assert shown['te_batch_next_size_bucket{le="32.0"}'] == 1
    assert shown['vectord_cache_hits_total{model="m"}'] == 1
    assert shown['vectord_cache_misses_total{model="m"}'] == 16
    assert shown['te_request_count{method="single"}'] == 5
    assert shown['te_request_count{method="batch"}'] == 2
    assert shown['te_request_success{method="single"}'] == 2
    assert shown['te_request_failure{err="overloaded"}'] == 1
    assert shown['te_request_failure{err="validation"}'] == 1
    assert shown['te_request_failure{err="dropped"}'] == 1
    assert (shown["te_embed_count"], shown["te_embed_success"]) == (17, 17)
    assert (shown["te_predict_count"], shown["te_predict_success"]) == (4, 4)
    assert shown["te_request_duration_count"] == 4
    assert shown["te_request_queue_duration_sum"] == pytest.approx(0.008)


def test_every_error_of_a_request_has_a_name_in_tei() -> None:
    """An engine may end a request in any error of the tree but those of a start or of HTTP."""
    elsewhere = {
        "MalformedBody",
        "UnsupportedMediaType",
        "NotAcceptable",
        "PayloadTooLarge",
        "Unauthorized",
        "Forbidden",
        "NoSuchRoute",
        "MethodNotAllowed",
        "StartError",
        "ConfigError",
        "ModelUnavailable",
    }
    assert {kind.__name__ for kind in descendants(VectordError)} - elsewhere <= set(TEI_FAILURES)


def descendants(kind: type) -> set[type]:
    return {each for child in kind.__subclasses__() for each in {child, *descendants(child)}}


def test_teis_buckets() -> None:
    """35 of them from 15 us, each half as long again, as its dashboards expect."""
    assert (len(TEI_SECONDS), TEI_SECONDS[0]) == (35, 0.000015)
    assert TEI_SECONDS[34] == pytest.approx(14.55, rel=0.01)


@given(
    bounds=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=10, unique=True).map(sorted),
    values=st.lists(st.floats(-2e6, 2e6), max_size=50),
)
@settings(deadline=None, max_examples=100)
def test_a_bucket_holds_what_is_not_above_its_bound(bounds: list[float], values: list[float]) -> None:
    """Cumulative, inclusive, +Inf last, and the sum beside them."""
    histogram = Histogram("h", "", bounds)
    for value in [*values, *bounds]:
        histogram.observe(value)
    shown = dict(histogram.children[()].cumulative())
    for bound in bounds:
        assert shown[repr(float(bound))] == sum(value <= bound for value in [*values, *bounds])
    assert shown["+Inf"] == len(values) + len(bounds)
    assert histogram.children[()].total == pytest.approx(sum(values) + sum(bounds), abs=1e-3)


@pytest.fixture
def restless_threads() -> Iterator[None]:
    """Threads take turns between almost any two steps."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval_s)


@pytest.mark.usefixtures("restless_threads")
def test_two_servers_count_apart() -> None:
    """Nothing is global."""
    one, two = Metrics("0"), Metrics("0")
    one.http_answered("openai", "/", 200, 0.1)
    assert "openai" not in two.exposition().decode()


def test_counting_a_request_costs_little() -> None:
    """All that one request moves, under 20 us; on an idle machine it is about 5."""
    metrics = Metrics("0")
    metrics.model_changed("m", "ready", 0.1)
    times = Timings(tokenize_s=0.001, queue_s=0.002, inference_s=0.02, total_s=0.03)

    def requests(n: int) -> float:
        began_s = time.thread_time()
        for _ in range(n):
            metrics.request_answered("m", "embed", None, 1, 12, times)
            metrics.queue_changed(1, 12)
            metrics.cache_looked_up("m", 0, 1)
            metrics.batch_ran("m", 1, 12, 0.02, failed=False)
            metrics.http_answered("openai", "/v1/embeddings", 200, 0.03)
        return (time.thread_time() - began_s) / n

    assert min(requests(500) for _ in range(5)) < 20e-6
