"""The console's history, its sums by model and error, and the recent requests."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from tests.observability.test_server_metrics import gauges

from vectord.engine.events import RequestEnded
from vectord.observability import metrics as module
from vectord.observability.exchange import Exchange
from vectord.observability.metrics import RECENT, STEPS, FigurePart, Metrics
from vectord.schema import Caller, TextLength, TextLengths, Timings


def watched() -> Metrics:
    metrics = Metrics("0", names_models=False)  # numbers on /metrics; the console still needs the names
    metrics.watch(gauges, tuple)
    return metrics


async def figures(metrics: Metrics, part: FigurePart) -> dict[str, Any]:
    shown: dict[str, Any] = orjson.loads(orjson.dumps(await metrics.figures(part)))
    return shown


def record(metrics: Metrics) -> None:
    metrics.activity.record(metrics.live_figures(gauges()))


def answered(**changes: Any) -> RequestEnded:
    return RequestEnded(caller=Caller(), operation="embed", **{"model": "m", "texts": 1, "tokens": 5, **changes})


def exchange(status: int = 200, error: str | None = None, dialect: str = "openai", **changes: Any) -> Exchange:
    fixed: dict[str, Any] = {"method": "POST", "route": "/v1/embeddings", "request_id": "", "began_s": 1.0}
    return Exchange(dialect=dialect, status=status, error=error, ended_s=1.004, **fixed, **changes)


async def test_a_model_has_sums_of_its_requests() -> None:
    """Requests, errors, tokens, texts, truncated texts, then answers by duration. An error without a model has none."""
    metrics = watched()
    lengths = TextLengths.of([TextLength(9, 4), TextLength(4, 4)])
    metrics.observe(answered(texts=2, tokens=8, lengths=lengths, timings=Timings(ended_s=0.0012)))
    metrics.observe(answered(error="InputTooLong"))
    metrics.observe(answered(model="", error="ModelNotFound"))
    sums = (await figures(metrics, "live"))["models"]
    assert list(sums) == ["m"]
    assert sums["m"][:5] == [2, 1, 8, 2, 1]
    assert sums["m"][5:7] == [0, 1] and sum(sums["m"][5:]) == 1


async def test_errors_are_counted_by_status_and_class() -> None:
    """Of clients' requests; probes and pages are not counted."""
    metrics = watched()
    for event in (exchange(), exchange(429, "Overloaded"), exchange(429, "Overloaded"), exchange(400, "InputTooLong")):
        metrics.observe(event)
    metrics.observe(exchange(404, "NoSuchRoute", dialect="server"))
    assert (await figures(metrics, "live"))["errors_by"] == {"429 Overloaded": 2, "400 InputTooLong": 1}


async def test_a_step_of_the_history_has_the_differences_since_the_last() -> None:
    """With the models and errors of the step only."""
    metrics = watched()
    metrics.observe(exchange(500, "InferenceFailed"))
    metrics.observe(answered(model="before"))
    record(metrics)
    metrics.observe(exchange())
    metrics.observe(exchange(429, "Overloaded"))
    metrics.observe(answered(tokens=7))
    record(metrics)
    history = await figures(metrics, "history")
    (step,) = history["steps"]
    assert (step["requests"], step["errors"], step["tokens"]) == (2, 1, 7)
    assert step["errors_by"] == {"429 Overloaded": 1}
    assert sum(step["counts"]) == 2
    assert step["models"].keys() == {"m"}
    assert history["last"]["requests"] == 3


async def test_the_history_has_one_hour() -> None:
    """At its step; older steps leave it."""
    metrics = watched()
    for _ in range(STEPS + 5):
        record(metrics)
    history = await figures(metrics, "history")
    assert len(history["steps"]) == STEPS
    assert 3600 <= STEPS * history["step_s"] < 3800


async def test_the_history_is_kept_while_no_page_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task records it."""
    monkeypatch.setattr(module, "STEP_S", 0.001)
    metrics = watched()
    task = asyncio.create_task(metrics.keep_history())
    while len((await figures(metrics, "history"))["steps"]) < 2:
        await asyncio.sleep(0.001)
    task.cancel()


async def test_recent_requests_have_their_outcome_and_no_text() -> None:
    """The last one first, a bounded number, without probes and lists. The reason of an error may quote a client's
    words."""
    metrics = watched()
    for _ in range(RECENT):
        metrics.observe(exchange(model="m", texts=2, tokens=9, key="ann"))
    metrics.observe(exchange(dialect="server"))
    metrics.observe(exchange())  # GET /v1/models
    metrics.observe(exchange(400, "InvalidField", reason="got 'a secret text'"))
    recent = (await figures(metrics, "requests"))["requests"]
    assert len(recent) == RECENT
    assert (recent[0]["status"], recent[0]["error"], recent[0]["model"]) == (400, "InvalidField", None)
    assert {name: recent[1][name] for name in ("status", "model", "texts", "tokens", "ms", "key")} == {
        "status": 200,
        "model": "m",
        "texts": 2,
        "tokens": 9,
        "ms": 4.0,
        "key": "ann",
    }
    assert b"secret" not in orjson.dumps(recent)
