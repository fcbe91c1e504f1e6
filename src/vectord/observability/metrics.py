"""Collects the metrics of this server and of the products, and writes the page that Prometheus reads.

`Metrics.observe` is the observer of the engine and of HTTP. Everything runs on the event loop. Nothing is global: two
servers in one process count separately.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import msgspec

from vectord.engine.events import Event
from vectord.housekeeping import Housekeeping
from vectord.observability.activity import STEP_S, Activity
from vectord.observability.exchange import ConnectionsCounted, Exchange
from vectord.observability.instruments import MetricFamilies, Snapshot
from vectord.observability.process_metrics import ProcessMetrics
from vectord.observability.server_metrics import ServerMetrics
from vectord.schema import Gauges, ModelInfo

FigurePart: TypeAlias = Literal["live", "history", "requests"]  # parts of the console's data

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Metrics:
    """Every family is shown from the start, at zero."""

    def __init__(
        self,
        version: str,
        products: Sequence[MetricFamilies] = (),
        *,
        names_keys: bool = True,
        names_models: bool = True,
    ) -> None:
        """names_keys: show the series of each named key. names_models: False shows the models' numbers, from 1."""
        self.version = version
        self.own = ServerMetrics(version, names_keys=names_keys)
        self.activity = Activity()
        self._families: tuple[MetricFamilies, ...] = (self.own, *products)
        self._handlers: dict[type, list[Callable[[Any], None]]] = {}
        for families in self._families:
            for kind, handle in families.handlers().items():
                self.subscribe(kind, handle)
        self._gauges: Callable[[], Gauges] | None = None
        self._models: Callable[[], Sequence[ModelInfo]] = tuple
        self._keys: Callable[[], Iterable[str]] = tuple
        self._numbers: dict[str, str] | None = None if names_models else {"": ""}  # of models, by name
        self._process = ProcessMetrics()
        self._housekeeping = Housekeeping("the console's history")
        self._writing = asyncio.Lock()  # one page at a time: it may have a megabyte

    def subscribe(self, kind: type, handle: Callable[[Any], None]) -> None:
        """Also call `handle` with each event of this type."""
        self._handlers.setdefault(kind, []).append(handle)

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
        self.activity.observe(event)
        if self._numbers is not None and (model := getattr(event, "model", None)) is not None:
            event = msgspec.structs.replace(event, model=self._label(model))
        for handle in self._handlers.get(type(event), ()):
            handle(event)

    async def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """The page and its content type: OpenMetrics with exemplars if `accept` names it, else plain text."""
        in_open_metrics = "application/openmetrics-text" in accept
        async with self._writing:
            self._look()
            texts = []
            for families in (self._process, *self._families):
                for instrument in families.instruments():
                    texts.append(instrument.text(in_open_metrics))
                    await asyncio.sleep(0)  # the largest family takes half a millisecond
        if in_open_metrics:
            texts.append("# EOF\n")
        return "".join(texts).encode(), OPEN_METRICS if in_open_metrics else TEXT

    def figures(self, part: FigurePart) -> dict[str, Any] | None:
        """The console's figures, with the names of all models and keys; None before `watch`."""
        if self._gauges is None:
            return None
        match part:
            case "live":
                load = self.own.live_figures(self._gauges())
                return {"version": self.version, **load, **self.activity.sums()}
            case "history":
                return self.activity.history()
            case "requests":
                return {"requests": self.activity.recent()}

    async def keep_history(self) -> None:
        """Add a step to the console's history every few seconds, until it is cancelled."""
        while True:
            self._housekeeping.run(self._record)
            await asyncio.sleep(STEP_S)

    def _record(self) -> None:
        if (figures := self.figures("live")) is not None:
            self.activity.record(figures)

    def _look(self) -> None:
        self._process.read()
        for name in self._keys():
            self.own.expect_key(name)
        if self._gauges is None:
            return
        gauges = self._gauges()
        gauges = replace(gauges, memory_bytes={self._label(name): size for name, size in gauges.memory_bytes.items()})
        snapshot = Snapshot(gauges, self._shown(self._models()), self.own.busy_share())
        for families in self._families:
            families.look(snapshot)

    def _shown(self, models: Sequence[ModelInfo]) -> Sequence[ModelInfo]:
        return [replace(model, name=self._label(model.name)) for model in models]

    def _label(self, model: str) -> str:
        return model if self._numbers is None else self._numbers.setdefault(model, str(len(self._numbers)))
