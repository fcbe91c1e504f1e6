"""Collects the metrics of this server and of the products, and writes the page that Prometheus reads; and what the
console shows besides the present load.

`Metrics.observe` is the observer of the engine and of HTTP. Everything runs on the event loop. Nothing is global: two
servers in one process count separately.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from vectord.engine.events import Event, RequestEnded
from vectord.housekeeping import Housekeeping
from vectord.observability.exchange import ConnectionsCounted, Exchange
from vectord.observability.instruments import MetricFamilies, Snapshot
from vectord.observability.process_metrics import ProcessMetrics
from vectord.observability.server_metrics import SECONDS, ServerMetrics
from vectord.schema import Gauges, ModelInfo

FigurePart: TypeAlias = Literal["live", "history", "requests", "product"]  # of the console, and of a product's page

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

STEP_S = 10.0  # of the history
STEPS = 366  # of the history: a little more than an hour
RECENT = 500  # requests

Figures = Mapping[str, Any]


class Metrics:
    """Every family is shown from the start, at zero."""

    def __init__(
        self,
        version: str,
        imitated: MetricFamilies | None = None,
        *,
        names_keys: bool = True,
        names_models: bool = True,
    ) -> None:
        """imitated: of the product that the server imitates. names_keys: show the series of each named key.
        names_models: False shows the models' numbers, from 1."""
        self.version = version
        self.own = ServerMetrics(version, names_keys=names_keys)
        self.activity = Activity()
        self._imitated = imitated or MetricFamilies()
        self._families: tuple[MetricFamilies, ...] = (self.own, self._imitated)
        self._handlers: dict[type, list[Callable[[Any], None]]] = {}
        for families in self._families:
            for kind, handle in families.handlers().items():
                self._handlers.setdefault(kind, []).append(handle)
        self._gauges: Callable[[], Gauges] | None = None
        self._models: Callable[[], Sequence[ModelInfo]] = tuple
        self._keys: Callable[[], Iterable[str]] = tuple
        self._numbers: dict[str, str] | None = None if names_models else {"": ""}  # of models, by name
        self._process = ProcessMetrics()
        self._housekeeping = Housekeeping("the console's history")
        self._writing = asyncio.Lock()  # one page at a time: it may have a megabyte

    def watch(self, gauges: Callable[[], Gauges], models: Callable[[], Sequence[ModelInfo]]) -> None:
        """Set the sources that each scrape reads. The models are shown at zero from now on."""
        self._gauges, self._models = gauges, models
        for model in self._shown(models()):
            for families in self._families:
                families.expect_model(model)

    def watch_keys(self, names: Callable[[], Iterable[str]]) -> None:
        """names: of the present keys, never a client's words. They are shown at zero from the next scrape."""
        self._keys = names

    def observe(self, event: Event | Exchange | ConnectionsCounted) -> None:
        if isinstance(event, RequestEnded):
            self.activity.request_ended(event)
        elif isinstance(event, Exchange) and event.dialect != "server":
            self.activity.exchange_ended(event)
        if self._numbers is not None and (model := getattr(event, "model", None)) is not None:
            event = msgspec.structs.replace(event, model=self._label(model))
        for handle in self._handlers.get(type(event), ()):
            handle(event)

    async def exposition(self, accept: str = "") -> tuple[bytes, str]:
        in_open_metrics = "application/openmetrics-text" in accept
        async with self._writing:
            self._process.read()
            for name in self._keys():
                self.own.expect_key(name)
            if self._gauges is not None:
                gauges = self._gauges()
                sizes = {self._label(name): size for name, size in gauges.memory_bytes.items()}
                models = self._shown(self._models())
                snapshot = Snapshot(replace(gauges, memory_bytes=sizes), models, self.own.busy_share())
                for families in self._families:
                    families.look(snapshot)
            texts = []
            for families in (self._process, *self._families):
                for instrument in families.instruments():
                    texts.append(instrument.text(in_open_metrics))
                    await asyncio.sleep(0)  # the largest family takes half a millisecond
        if in_open_metrics:
            texts.append("# EOF\n")
        return "".join(texts).encode(), OPEN_METRICS if in_open_metrics else TEXT

    async def figures(self, part: FigurePart) -> Figures | None:
        """Those of the console have the names of all models and keys. None before `watch`."""
        if self._gauges is None:
            return None
        match part:
            case "live":
                return self.live_figures(self._gauges())
            case "history":
                return self.activity.history()
            case "requests":
                return {"requests": self.activity.recent()}
            case "product":
                return self._imitated.figures(self._models())

    def live_figures(self, gauges: Gauges) -> Figures:
        """The present load, and the sums since the start."""
        return {"version": self.version, **self.own.live_figures(gauges), **self.activity.sums()}

    async def keep_history(self) -> None:
        while True:
            self._housekeeping.run(self._record)
            await asyncio.sleep(STEP_S)

    def _record(self) -> None:
        if self._gauges is not None:
            self.activity.record(self.live_figures(self._gauges()))

    def _shown(self, models: Sequence[ModelInfo]) -> Sequence[ModelInfo]:
        return [replace(model, name=self._label(model.name)) for model in models]

    def _label(self, model: str) -> str:
        return model if self._numbers is None else self._numbers.setdefault(model, str(len(self._numbers)))


class Activity:
    """An hour of history, sums by model and error, and recent requests, for the console.

    Contains names of models and keys; server/pages/console.py removes those that a request's key may not see.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._started_s = now_s()
        self._models: dict[str, list[int]] = {}
        self._errors: Counter[str] = Counter()
        self._recent: deque[tuple[float, Exchange]] = deque(maxlen=RECENT)
        self._steps: deque[Figures] = deque(maxlen=STEPS)
        self._last: Figures | None = None

    def exchange_ended(self, event: Exchange) -> None:
        """event: of a client, not of a probe or a page."""
        if event.model is not None or event.status >= 400:  # not the lists that pages and clients poll
            self._recent.append((time.time(), event))
        if event.status >= 400:
            self._errors[f"{event.status} {event.error or ''}"] += 1

    def request_ended(self, event: RequestEnded) -> None:
        """The sums of a model: requests, errors, tokens, texts, truncated texts, and answers by duration."""
        if not event.model:
            return
        sums = self._models.setdefault(event.model, [0] * (6 + len(SECONDS)))
        sums[0] += 1
        if event.error is not None:
            sums[1] += 1
            return
        sums[2] += event.tokens
        sums[3] += event.texts
        sums[4] += len(event.lengths.truncated)
        sums[5 + bisect_left(SECONDS, event.timings.total_s)] += 1

    def sums(self) -> dict[str, Any]:
        """Since the start: errors by status and class, answered texts, and the sums of each model."""
        return {
            "unix_s": time.time(),
            "uptime_s": self._now_s() - self._started_s,
            "errors_by": dict(self._errors),
            "texts": sum(sums[3] for sums in self._models.values()),
            "models": {name: list(sums) for name, sums in self._models.items()},
        }

    def record(self, figures: Figures) -> None:
        """Add a step to the history: the differences from the last figures, and the present sizes.

        figures: of ServerMetrics, with `sums`; called every STEP_S. console/history.js makes the same steps.
        """
        old, self._last = self._last, figures
        if old is None:
            return
        counts = _difference(figures["latency"]["counts"], old["latency"]["counts"])
        errors = {name: count - old["errors_by"].get(name, 0) for name, count in figures["errors_by"].items()}
        models = {name: _difference(sums, old["models"].get(name, ())) for name, sums in figures["models"].items()}
        step = {
            "ended_unix_s": round(figures["unix_s"], 1),
            "seconds": round(figures["clock_s"] - old["clock_s"], 3),
            **{name: round(figures[name] - old[name], 3) for name in _SUMS},
            "counts": counts if any(counts) else [],
            "cache_hits": figures["cache"]["hits"] - old["cache"]["hits"],
            "cache_misses": figures["cache"]["misses"] - old["cache"]["misses"],
            "wait_s": round(figures["wait_s"], 3),
            "saturation": round(figures["saturation"], 3),
            "memory": figures["memory"],
            "devices": {name: device["used_bytes"] for name, device in figures["devices"].items()},
            "errors_by": {name: count for name, count in errors.items() if count},
            "models": {name: sums for name, sums in models.items() if any(sums)},
        }
        self._steps.append(step)

    def history(self) -> dict[str, Any]:
        return {"step_s": STEP_S, "steps": list(self._steps), "last": self._last}

    def recent(self) -> Sequence[dict[str, Any]]:
        """The latest requests that a model answered or that failed, the last one first."""
        return [
            {"ended_unix_s": round(ended_unix_s, 3), "ms": round(each.seconds * 1000, 2)}
            | {name: getattr(each, name) for name in _SHOWN}
            for ended_unix_s, each in reversed(self._recent)
        ]


_SHOWN = ("dialect", "method", "route", "status", "error", "model", "texts", "tokens", "key")  # of a recent request
_SUMS = ("requests", "errors", "texts", "tokens", "run_tokens", "forwards", "forward_fill", "waits", "waited_s")


def _difference(new: Sequence[int], old: Sequence[int]) -> list[int]:
    return [value - before for value, before in zip(new, old or [0] * len(new), strict=True)]
