"""inference_*, model_*: the families of Semantic Explorer's Embedding Inference API.

Its gpu_memory_total_bytes is Smart Embedder's too, and means the same (smart_embedder.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from vectord.compute.processor import thread_budget
from vectord.engine.events import ModelStateChanged, RequestEnded
from vectord.observability.instruments import Counter, Gauge, Histogram, MetricFamilies, Snapshot
from vectord.products.common.operations import EMBEDS, LEFT, SECONDS
from vectord.schema import ModelInfo

STATUSES = ("success", "failure")
LOADED = frozenset({"ready", "stalled"})


class SemanticExplorerMetrics(MetricFamilies):
    def __init__(self) -> None:
        by_status = ("model", "status")
        self.embeds = Counter("inference_embed_requests", "Requests for vectors", by_status)
        self.embed_seconds = Histogram(
            "inference_embed_duration_seconds", "Time a request for vectors takes", SECONDS, ("model",)
        )
        self.embed_texts = Counter("inference_embed_items", "Texts embedded", ("model",))
        self.text_seconds = Histogram(
            "inference_embed_per_item_duration_seconds", "That time divided by its texts", SECONDS, ("model",)
        )
        self.reranks = Counter("inference_rerank_requests", "Requests to rerank", by_status)
        self.rerank_seconds = Histogram(
            "inference_rerank_duration_seconds", "Time a request to rerank takes", SECONDS, ("model",)
        )
        self.passages = Counter("inference_rerank_documents", "Passages scored", ("model",))
        self.load_seconds = Gauge("model_load_duration_seconds", "Time the model's last load took", ("model",))
        self.memory = Gauge("model_memory_bytes", "What the model holds, by its weights; 0: not loaded", ("model",))
        self.loaded = Gauge("models_loaded_total", "Models in memory")  # no counter, whatever its name says
        self.gpu_used = Gauge("gpu_memory_used_bytes", "Memory of GPUs in use; 0 without a GPU")
        self.gpu_percent = Gauge("gpu_utilization_percent", "Time in which forwards ran on a GPU; 0 without one")
        self.cpu_percent = Gauge("cpu_usage_percent", "What this process used of the processor since it was last asked")
        self._states: dict[str, str] = {}
        self._threads = thread_budget()
        self._clocks_s = (time.monotonic(), time.process_time())

    def expect_model(self, model: ModelInfo) -> None:
        self.load_seconds.expect(model.name)
        self.memory.expect(model.name)
        if model.outputs:
            self.embed_texts.expect(model.name)
            self.embed_seconds.expect(model.name)
            self.text_seconds.expect(model.name)
        if model.outputs or model.reranks:  # what embeds can rank by its vectors
            self.passages.expect(model.name)
            self.rerank_seconds.expect(model.name)
        for status in STATUSES:
            if model.outputs:
                self.embeds.expect(model.name, status)
            if model.outputs or model.reranks:
                self.reranks.expect(model.name, status)

    def handlers(self) -> Mapping[type, Callable[[Any], None]]:
        return {ModelStateChanged: self.model_changed, RequestEnded: self.request_ended}

    def model_changed(self, event: ModelStateChanged) -> None:
        self._states[event.model] = event.state
        self.loaded.set(sum(each in LOADED for each in self._states.values()))
        if event.load_seconds is not None:
            self.load_seconds.set(event.load_seconds, event.model)

    def request_ended(self, event: RequestEnded) -> None:
        if event.error in LEFT:
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
        self.gpu_percent.set(100 * min(1.0, snapshot.busy_share) if devices else 0)
        self.cpu_percent.set(self._cpu_percent())

    def _cpu_percent(self) -> float:
        before, now = self._clocks_s, (time.monotonic(), time.process_time())
        self._clocks_s = now
        seconds = (now[0] - before[0]) * self._threads
        return min(100.0, 100 * (now[1] - before[1]) / seconds) if seconds else 0.0
