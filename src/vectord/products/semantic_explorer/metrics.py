"""inference_*, model_*, gpu_*: the families of Semantic Explorer's Embedding Inference API."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from vectord.compute.processor import thread_budget
from vectord.engine.events import ModelStateChanged, RequestEnded
from vectord.errors import MalformedBody, MissingField, WrongType
from vectord.observability.exchange import Exchange
from vectord.observability.instruments import Counter, Gauge, Histogram, MetricFamilies, Snapshot
from vectord.products.common.operations import CANCELLED, EMBEDS, SECONDS
from vectord.schema import ModelInfo

LOADED = frozenset({"ready", "stalled"})
MALFORMED = frozenset(
    one.__name__ for one in (MalformedBody, WrongType, MissingField)
)  # raised before the engine sees the request


class SemanticExplorerMetrics(MetricFamilies):
    def __init__(self) -> None:
        def histogram(name: str, meaning: str) -> Histogram:
            return Histogram(name, meaning, SECONDS, ("model",))

        self.embeds = Counter("inference_embed_requests", "Requests for vectors", ("model", "status"))
        self.embed_seconds = histogram("inference_embed_duration_seconds", "Duration of a request for vectors")
        self.embed_texts = Counter("inference_embed_items", "Texts embedded", ("model",))
        self.text_seconds = histogram(
            "inference_embed_per_item_duration_seconds", "Duration of a request divided by its texts"
        )
        self.reranks = Counter("inference_rerank_requests", "Requests to rerank", ("model", "status"))
        self.rerank_seconds = histogram("inference_rerank_duration_seconds", "Duration of a request to rerank")
        self.passages = Counter("inference_rerank_documents", "Scored passages", ("model",))
        self.load_seconds = Gauge("model_load_duration_seconds", "Duration of the model's last load", ("model",))
        self.memory = Gauge("model_memory_bytes", "Size of the model's weights; 0 if it is not loaded", ("model",))
        self.loaded = Gauge("models_loaded_total", "Models in memory")  # a gauge, despite its name
        self.gpu_used = Gauge("gpu_memory_used_bytes", "Memory of GPUs in use; 0 without a GPU")
        self.gpu_total = Gauge("gpu_memory_total_bytes", "Memory of GPUs; 0 without a GPU")
        self.gpu_percent = Gauge(
            "gpu_utilization_percent", "Share of time in which batches ran on a GPU; 0 without a GPU"
        )
        self.cpu_percent = Gauge("cpu_usage_percent", "Processor use of this process since the last scrape")
        self.embeds.expect("", "failure")
        self.reranks.expect("", "failure")
        self._states: dict[str, str] = {}
        self._threads = thread_budget()
        self._clocks_s = (time.monotonic(), time.process_time())

    def expect_model(self, model: ModelInfo) -> None:
        expected: list[Counter | Histogram] = [self.load_seconds, self.memory]
        by_status = []
        if model.outputs:
            expected += [self.embed_texts, self.embed_seconds, self.text_seconds]
            by_status += [self.embeds]
        if model.outputs or model.reranks:  # a model that embeds can rank by its vectors
            expected += [self.passages, self.rerank_seconds]
            by_status += [self.reranks]
        for instrument in expected:
            instrument.expect(model.name)
        for counter in by_status:
            counter.expect(model.name, "success")
            counter.expect(model.name, "failure")

    def handlers(self) -> Mapping[type, Callable[[Any], None]]:
        return {
            ModelStateChanged: self.model_changed,
            RequestEnded: self.request_ended,
            Exchange: self.http_answered,
        }

    def http_answered(self, exchange: Exchange) -> None:
        """Counts a malformed body on the product's routes as a failure, with no model."""
        if exchange.dialect == "semantic_explorer" and exchange.error in MALFORMED:
            (self.reranks if "rerank" in exchange.route else self.embeds).add(1, "", "failure")

    def model_changed(self, event: ModelStateChanged) -> None:
        self._states[event.model] = event.state
        self.loaded.set(sum(each in LOADED for each in self._states.values()))
        if event.load_seconds is not None:
            self.load_seconds.set(event.load_seconds, event.model)

    def request_ended(self, event: RequestEnded) -> None:
        if event.error in CANCELLED:
            return
        status = "success" if event.error is None else "failure"
        seconds = event.timings.total_s
        if event.operation in EMBEDS:
            self.embeds.add(1, event.model, status)
            if event.error is None:
                self.embed_seconds.observe(seconds, event.model)
                self.text_seconds.observe(seconds / max(1, event.texts), event.model)
                self.embed_texts.add(event.texts, event.model)
        elif event.operation == "rerank":
            self.reranks.add(1, event.model, status)
            if event.error is None:
                self.rerank_seconds.observe(seconds, event.model)
                self.passages.add(event.texts, event.model)

    def look(self, snapshot: Snapshot) -> None:
        devices = snapshot.gauges.devices
        for model, held in snapshot.gauges.memory_bytes.items():
            self.memory.set(held, model)
        self.gpu_used.set(sum(memory.total - memory.free for memory in devices.values()))
        self.gpu_total.set(sum(memory.total for memory in devices.values()))
        self.gpu_percent.set(100 * min(1.0, snapshot.busy_share) if devices else 0)
        before, now = self._clocks_s, (time.monotonic(), time.process_time())
        self._clocks_s = now
        seconds = (now[0] - before[0]) * self._threads
        self.cpu_percent.set(min(100.0, 100 * (now[1] - before[1]) / seconds) if seconds else 0.0)
