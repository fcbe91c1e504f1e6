"""What Prometheus is told: our own families, and those that each product's dashboards look for (families/).

The engine calls it as its Observer, the server calls `http_answered` after each answer and `exposition` for /metrics.
All of it runs on the event loop, but for the writing of that page. Nothing is global: two servers in one process count
apart.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from vectord.engine.observer import BatchReport, RequestReport
from vectord.observability.exchange import Exchange
from vectord.observability.instruments import instruments_of
from vectord.observability.live import live_figures
from vectord.products.semantic_explorer.metrics import SemanticExplorerFamilies
from vectord.products.simple_inference_server.metrics import SimpleInferenceServerFamilies
from vectord.products.smart_embedder.metrics import SmartEmbedderFamilies
from vectord.products.tei.metrics import TeiFamilies
from vectord.products.vectord.metrics import OwnFamilies
from vectord.schema import Gauges, ModelInfo

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

# Behind each family, in which the event loop runs: a thread that computes keeps the interpreter for 5 ms at a time.
PAUSE_S = 50e-6


class Metrics:
    """An Observer of the engine and of HTTP. Every family exists from the start, at zero."""

    def __init__(self, version: str, max_lengths: Mapping[str, int] | None = None) -> None:
        """max_lengths: what embedding_server_info says of bge_embed_max_length and its like."""
        self._own = OwnFamilies(version)
        self._tei = TeiFamilies()
        self._smart = SmartEmbedderFamilies(version, max_lengths or {})
        self._simple = SimpleInferenceServerFamilies()
        self._explorer = SemanticExplorerFamilies()
        self._gauges: Callable[[], Gauges] | None = None
        self._models: Callable[[], Sequence[ModelInfo]] = tuple
        self._keys: Callable[[], Iterable[str]] = tuple
        self._process: Collector | None = None
        self._writing = asyncio.Lock()

    # --- compose tells ----------------------------------------------------------------------------------------

    def watch(self, gauges: Callable[[], Gauges], models: Callable[[], Sequence[ModelInfo]]) -> None:
        """What to ask at each scrape. The models are shown at zero from now on."""
        self._gauges, self._models = gauges, models
        for model in models():
            self._own.expect_model(model.name)
            self._smart.expect_model(model)
            self._simple.expect_model(model)
            self._explorer.expect_model(model)

    def watch_keys(self, names: Callable[[], Iterable[str]]) -> None:
        """names: of the keys as they are now, never what a client sends. Shown at zero from the next scrape."""
        self._keys = names

    # --- the server tells -------------------------------------------------------------------------------------

    def expect_routes(self, routes: Iterable[tuple[str, str]]) -> None:
        """(dialect, path) of what is served, to be shown at zero."""
        for dialect, route in routes:
            self._own.requests.expect(dialect, route, "200")

    def http_answered(self, exchange: Exchange) -> None:
        self._own.http_answered(exchange)

    def rejected(self, route: str, reason: str) -> None:
        self._own.rejected.add(1, reason)
        self._smart.rejected_before(route, reason)

    # --- the engine tells -------------------------------------------------------------------------------------

    def request_began(self, operation: str) -> None:
        self._smart.active_changed(operation, 1)

    def request_ended(self, operation: str) -> None:
        self._smart.active_changed(operation, -1)

    def request_answered(self, report: RequestReport) -> None:
        self._own.request_answered(report)
        self._tei.request_answered(report)
        self._smart.request_answered(report)
        self._simple.request_answered(report)
        self._explorer.request_answered(report)

    def batch_ran(self, report: BatchReport) -> None:
        self._own.batch_ran(report)
        self._tei.batch_ran(report)
        self._smart.batch_ran(report)

    def queue_changed(self, texts: int, tokens: int) -> None:
        self._own.queue_texts.set(texts)
        self._own.queue_tokens.set(tokens)
        self._tei.queue_texts.set(texts)
        self._smart.queue.set(texts)

    def cache_looked_up(self, model: str, hits: int, misses: int) -> None:
        self._own.cache_hits.add(hits, model)
        self._own.cache_misses.add(misses, model)
        self._simple.cache_looked_up(model, hits, misses)

    def shared_cache_looked_up(self, model: str, hits: int, misses: int) -> None:
        self._own.shared_cache_hits.add(hits, model)
        self._own.shared_cache_misses.add(misses, model)

    def shared_cache_refused(self, model: str, values: int) -> None:
        self._own.shared_cache_refused.add(values, model)

    def model_changed(self, model: str, state: str, load_seconds: float | None) -> None:
        self._own.model_changed(model, state)
        self._explorer.model_changed(model, state, load_seconds)

    # --- Prometheus asks --------------------------------------------------------------------------------------

    async def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """Every family, and its content type: OpenMetrics with exemplars for those who accept that, else plain text.

        Written in a thread, one page at a time. TEI's counters keep their names, without _total, in both.
        """
        async with self._writing:
            self._look()
            return await asyncio.to_thread(self._written, "application/openmetrics-text" in accept)

    def _written(self, in_open_metrics: bool) -> tuple[bytes, str]:
        if in_open_metrics:
            from prometheus_client.openmetrics import exposition as open_metrics  # noqa: PLC0415

            families = chain(self._families(), self._tei.counters_of_no_type())
            body: bytes = open_metrics.generate_latest(_Scrape(families))  # type: ignore[no-untyped-call]
            return body, OPEN_METRICS
        from prometheus_client.exposition import generate_latest  # noqa: PLC0415

        return generate_latest(_Scrape(self._families())) + self._tei.counters_text(), TEXT

    def live(self) -> dict[str, Any] | None:
        """What the console draws (live.py); None of an engine that nobody has named yet."""
        gauges = None if self._gauges is None else self._gauges()
        if gauges is None:
            return None
        self._own.look(gauges)
        return live_figures(self._own, gauges)

    def _families(self) -> Iterator[Metric]:
        from prometheus_client import ProcessCollector  # noqa: PLC0415

        self._process = self._process or ProcessCollector(registry=None)
        yield from self._process.collect()
        of_all = (self._own, self._smart, self._simple, self._explorer)
        for instrument in chain(*map(instruments_of, of_all), self._tei.histograms_and_gauges()):
            yield instrument.family()

    def _look(self) -> None:
        for name in self._keys():
            self._own.expect_key(name)
        gauges = None if self._gauges is None else self._gauges()
        if gauges is None:
            return
        models = self._models()
        self._own.look(gauges)
        self._own.look_at_devices(models)
        self._smart.look(models, gauges.devices)
        self._explorer.look(gauges.memory_bytes, gauges.devices, self._own.busy_share())


class _Scrape:
    """Families, as the library's writers ask for them: each when the one before it is written."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        for family in self._families:
            yield family
            time.sleep(PAUSE_S)
