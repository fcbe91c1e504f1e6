"""Collects the metrics of this server and of the products, and writes the page that Prometheus reads.

`Metrics.observe` is the observer of the engine and of HTTP. Everything runs on the event loop except the writing of the
page. Nothing is global: two servers in one process count separately.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from vectord.engine.events import Event
from vectord.observability.exchange import ConnectionsCounted, Exchange
from vectord.observability.instruments import Counter, MetricFamilies, Snapshot
from vectord.observability.server_metrics import ServerMetrics
from vectord.schema import Gauges, ModelInfo

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

# The writing thread sleeps after each family so that the event loop runs: a thread that computes keeps the interpreter
# for 5 ms at a time.
PAUSE_S = 50e-6


class Metrics:
    """Every family is shown from the start, at zero."""

    def __init__(self, version: str, products: Sequence[MetricFamilies] = (), *, names_keys: bool = True) -> None:
        """names_keys: show the series of each named key."""
        self.own = ServerMetrics(version, names_keys=names_keys)
        self._families: tuple[MetricFamilies, ...] = (self.own, *products)
        self._handlers: dict[type, list[Callable[[Any], None]]] = {}
        for families in self._families:
            for kind, handle in families.handlers().items():
                self.subscribe(kind, handle)
        self._gauges: Callable[[], Gauges] | None = None
        self._models: Callable[[], Sequence[ModelInfo]] = tuple
        self._keys: Callable[[], Iterable[str]] = tuple
        self._process: Collector | None = None
        self._writing = asyncio.Lock()

    def subscribe(self, kind: type, handle: Callable[[Any], None]) -> None:
        """Also call `handle` with each event of this type."""
        self._handlers.setdefault(kind, []).append(handle)

    def watch(self, gauges: Callable[[], Gauges], models: Callable[[], Sequence[ModelInfo]]) -> None:
        """Set the sources that each scrape reads. The models are shown at zero from now on."""
        self._gauges, self._models = gauges, models
        for model in models():
            for families in self._families:
                families.expect_model(model)

    def watch_keys(self, names: Callable[[], Iterable[str]]) -> None:
        """names: of the present keys, never a client's words. They are shown at zero from the next scrape."""
        self._keys = names

    def observe(self, event: Event | Exchange | ConnectionsCounted) -> None:
        for handle in self._handlers.get(type(event), ()):
            handle(event)

    async def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """The page and its content type: OpenMetrics with exemplars if `accept` names it, else plain text."""
        async with self._writing:
            self._look()
            return await asyncio.to_thread(self._write, "application/openmetrics-text" in accept)

    def live(self) -> dict[str, Any] | None:
        """The console's figures; None before `watch`."""
        return None if self._gauges is None else self.own.live_figures(self._gauges())

    def _look(self) -> None:
        for name in self._keys():
            self.own.expect_key(name)
        if self._gauges is None:
            return
        snapshot = Snapshot(self._gauges(), self._models(), self.own.busy_share())
        for families in self._families:
            families.look(snapshot)

    def _write(self, in_open_metrics: bool) -> tuple[bytes, str]:
        """On a thread. Counters with a bare name come last: the library's text format would append `_total`."""
        from prometheus_client import ProcessCollector  # noqa: PLC0415
        from prometheus_client.exposition import generate_latest  # noqa: PLC0415
        from prometheus_client.openmetrics import exposition as open_metrics  # noqa: PLC0415

        self._process = self._process or ProcessCollector(registry=None)
        instruments = list(chain.from_iterable(families.instruments() for families in self._families))
        bare = [one for one in instruments if isinstance(one, Counter) and one.bare_name]
        rest = (one.family() for one in instruments if one not in bare)
        families = chain(self._process.collect(), rest)
        if in_open_metrics:
            families = chain(families, (one.family() for one in bare))
            page: bytes = open_metrics.generate_latest(_Scrape(families))  # type: ignore[no-untyped-call]
            return page, OPEN_METRICS
        return generate_latest(_Scrape(families)) + "".join(one.text() for one in bare).encode(), TEXT


class _Scrape:
    """The collector that the library's writers read: one family at a time, with a pause after each."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            yield family
            time.sleep(PAUSE_S)
