"""The vectord_* metrics that autoscalers and operators read, and the console's figures."""

from __future__ import annotations

import time
from typing import Any

import orjson
import pytest

from vectord.engine.events import BatchRan, CacheLookedUp, ModelStateChanged, RequestEnded
from vectord.observability.exchange import Exchange
from vectord.observability.instruments import BusyShare
from vectord.observability.metrics import Metrics
from vectord.observability.server_metrics import ServerMetrics
from vectord.schema import Caller, DeviceMemory, Gauges, Timings


def gauges(**changes: Any) -> Gauges:
    idle: dict[str, Any] = {
        "queued_texts": 2,
        "queued_tokens": {"interactive": 0, "bulk": 0},
        "active": {},
        "wait_s": 0.0,
        "queued_embeds": 0,
        "under_way": 0,
    }
    fixed: dict[str, Any] = {
        "cached_texts": 0,
        "cache_bytes": 0,
        "cache_limit_bytes": 0,
        "memory_bytes": {},
        "devices": {},
    }
    return Gauges(max_wait_s=10.0, places=8, **{**idle, **fixed, **changes})


def batch(**changes: Any) -> BatchRan:
    sizes: dict[str, Any] = {"texts": 4, "tokens": 60, "padding_tokens": 20, "bulk_tokens": 45, "max_tokens": 100}
    rest = {"model": "m", "device": "cpu", "seconds": 0.02, "streams": 1, "failed": False, "scores": False}
    return BatchRan(**{**sizes, **rest, **changes})


@pytest.mark.parametrize(
    ("changes", "saturation"),
    [({}, 0.0), ({"wait_s": 4.0, "under_way": 2}, 0.4), ({"wait_s": 1.0, "under_way": 6}, 0.75), ({"wait_s": 99.0}, 1)],
    ids=["idle", "the wait", "the places", "at most 1"],
)
def test_saturation_is_the_largest_share(changes: dict[str, Any], saturation: float) -> None:
    """Of the allowed wait, or of the request places. An idle device adds nothing."""
    families = ServerMetrics("0")
    families.look_at_gauges(gauges(**changes))
    assert families.saturation.values[()] == pytest.approx(saturation)


def test_a_device_that_never_pauses_is_saturated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even without a queue: the next request will wait."""
    families = ServerMetrics("0")
    monkeypatch.setattr(BusyShare, "share", lambda busy: 0.9)
    families.look_at_gauges(gauges())
    assert families.saturation.values[()] == 0.9


def test_a_batch_counts_by_lane_with_its_fill_and_padding() -> None:
    """Padding fills a forward and belongs to no lane."""
    families = ServerMetrics("0")
    families.batch_ran(batch())
    assert families.batch_fill.children[()].total == pytest.approx(0.8)
    assert families.padding_tokens.values["m",] == 20
    assert (families.forward_tokens.values["m", "interactive"], families.forward_tokens.values["m", "bulk"]) == (15, 45)
    families.look_at_gauges(gauges(queued_tokens={"interactive": 5, "bulk": 7}))
    assert families.lane_queue_tokens.values == {("interactive",): 5, ("bulk",): 7}
    assert (families.queue_texts.values[()], families.queue_tokens.values[()]) == (2, 12)


# --- the console ----------------------------------------------------------------------------------------------


async def figures(metrics: Metrics) -> dict[str, Any]:
    shown = orjson.loads(orjson.dumps(await metrics.figures("live")))
    assert isinstance(shown, dict)
    return shown


def watched() -> Metrics:
    metrics = Metrics("0")
    present = gauges(
        queued_texts=2,
        queued_tokens={"interactive": 5, "bulk": 7},
        active={"embed": 1},
        wait_s=1.0,
        under_way=2,
        cached_texts=3,
        cache_bytes=4,
        cache_limit_bytes=64,
        memory_bytes={"secret-model": 100, "other": 20},
        devices={"cuda:0": DeviceMemory(allocated=1, reserved=2, free=30, total=100)},
    )
    metrics.watch(lambda: present, tuple)
    return metrics


async def test_the_console_counts_requests_of_clients_only() -> None:
    """Not its own polls, probes and scrapes."""
    metrics = watched()
    for dialect, status in [("openai", 200), ("tei", 429), ("server", 200)]:
        exchange = Exchange(
            method="POST", dialect=dialect, route="/r", status=status, request_id="", began_s=0.0, ended_s=0.004
        )
        metrics.observe(exchange)
    shown = await figures(metrics)
    assert (shown["requests"], shown["errors"]) == (2, 1)
    bucket = shown["latency"]["bounds_s"].index(0.005)
    assert shown["latency"]["counts"][bucket] == sum(shown["latency"]["counts"]) == 2


async def test_the_console_shows_sums_of_forwards_and_tokens() -> None:
    """The mean fill of a batch is the sum of fills divided by the number of forwards."""
    metrics = watched()
    for tokens in (50, 100):
        metrics.observe(batch(model="secret-model", texts=2, tokens=tokens, padding_tokens=0, bulk_tokens=10))
    waited = Timings(first_s=0.25)
    metrics.observe(
        RequestEnded(caller=Caller(), operation="embed", model="secret-model", texts=2, tokens=33, timings=waited)
    )
    metrics.observe(CacheLookedUp(model="secret-model", hits=3, misses=4))
    shown = await figures(metrics)
    assert (shown["forwards"], shown["forward_fill"]) == (2, 1.5)
    assert (shown["run_tokens"], shown["tokens"], shown["texts"]) == (150, 33, 2)
    assert (shown["waits"], shown["waited_s"]) == (1, 0.25)
    assert shown["cache"] == {"hits": 3, "misses": 4}
    assert shown["saturation"] >= 0.25


async def test_the_console_shows_the_present_state() -> None:
    """Memory of the process, the models and the devices; a clock for rates. The load of all names no
    model: a key that may not use a model must not learn of it."""
    before = time.monotonic()
    metrics = watched()
    metrics.observe(ModelStateChanged("secret-model", "ready", 1.0))
    shown = await figures(metrics)
    assert shown["memory"]["models_bytes"] == 120
    assert shown["memory"]["resident_bytes"] is None or shown["memory"]["resident_bytes"] > 2**20
    assert shown["devices"] == {"cuda:0": {"used_bytes": 70}}
    assert before <= shown["clock_s"] <= time.monotonic()
    assert b"secret-model" not in orjson.dumps(shown)
    assert (shown["version"], shown["uptime_s"] >= 0) == ("0", True)


async def test_without_an_engine_the_console_has_no_figures() -> None:
    """None, which the page receives as 404."""
    assert await Metrics("0").figures("live") is None
