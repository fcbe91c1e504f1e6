"""The console's figures: sums that only grow, of clients' requests alone, and nobody's names."""

from __future__ import annotations

import time
from typing import Any

import orjson

from vectord.engine.observer import BatchReport, RequestReport
from vectord.observability.exchange import Exchange
from vectord.observability.metrics import Metrics
from vectord.schema import Caller, DeviceMemory, Gauges


def figures(metrics: Metrics) -> dict[str, Any]:
    shown = orjson.loads(orjson.dumps(metrics.live()))
    assert isinstance(shown, dict)
    return shown


def watched() -> Metrics:
    metrics = Metrics("0")
    gauges = Gauges(
        queued_tokens={"interactive": 5, "bulk": 7},
        wait_s=1.0,
        max_wait_s=10.0,
        under_way=2,
        places=8,
        cached_texts=3,
        cache_bytes=4,
        memory_bytes={"secret-model": 100, "other": 20},
        devices={"cuda:0": DeviceMemory(allocated=1, reserved=2, free=30, total=100)},
    )
    metrics.watch(lambda: gauges, tuple)
    return metrics


def answered(metrics: Metrics, dialect: str, status: int, seconds: float) -> None:
    exchange = Exchange(
        method="POST", dialect=dialect, route="/r", status=status, request_id="", began_s=0.0, ended_s=seconds
    )
    metrics.http_answered(exchange)


def test_requests_of_clients_are_counted_and_the_pages_are_not() -> None:
    """An open console, probes and scrapes would else draw themselves."""
    metrics = watched()
    answered(metrics, "openai", 200, 0.004)
    answered(metrics, "tei", 429, 0.004)
    answered(metrics, "server", 200, 0.004)
    shown = figures(metrics)
    assert (shown["requests"], shown["errors"]) == (2, 1)
    bucket = shown["latency"]["bounds_s"].index(0.005)
    assert shown["latency"]["counts"][bucket] == sum(shown["latency"]["counts"]) == 2


def test_forwards_and_tokens_add_up() -> None:
    """How full batches were is their sum over their number."""
    metrics = watched()
    for tokens in (50, 100):
        metrics.batch_ran(
            BatchReport(
                model="secret-model",
                texts=2,
                tokens=tokens,
                padding_tokens=0,
                bulk_tokens=10,
                max_tokens=100,
                device="cpu",
                scores=False,
                seconds=0.001,
                streams=1,
                failed=False,
            )
        )
    metrics.request_answered(RequestReport(caller=Caller(), operation="embed", model="secret-model", tokens=33))
    metrics.cache_looked_up("secret-model", 3, 4)
    shown = figures(metrics)
    assert (shown["forwards"], shown["forward_fill"], shown["forward_texts"]) == (2, 1.5, 4)
    assert (shown["run_tokens"], shown["tokens"]) == (150, 33)
    assert shown["cache"] == {"hits": 3, "misses": 4, "bytes": 4, "texts": 3}
    assert shown["saturation"] >= 0.25


def test_it_says_what_is_true_of_this_moment() -> None:
    """Queues by lane, memory of the process, of models and of devices; a clock to divide by."""
    before = time.monotonic()
    shown = figures(watched())
    assert shown["queued_tokens"] == {"interactive": 5, "bulk": 7}
    assert shown["memory"]["models_bytes"] == 120
    assert shown["memory"]["resident_bytes"] is None or shown["memory"]["resident_bytes"] > 2**20
    assert shown["devices"] == {"cuda:0": {"used_bytes": 70, "total_bytes": 100}}
    assert before <= shown["clock_s"] <= time.monotonic()


def test_no_model_is_named() -> None:
    """A key that may not use a model must not learn of it here."""
    metrics = watched()
    metrics.model_changed("secret-model", "ready", 1.0)
    assert b"secret-model" not in orjson.dumps(metrics.live())


def test_an_engine_that_nobody_named_has_no_figures() -> None:
    """None, which the page is told as 404."""
    assert Metrics("0").live() is None
