"""embedding_*, rerank_*, gpu_*: Smart Embedder's families.

`embedding_requests_total` is claimed by Simple Inference Server too, with other labels and other words for statuses.
A process can have a name once: it has both products' labels, and this one's words, which its dashboards select by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vectord.engine.events import ActiveRequestsChanged, BatchRan, QueueChanged, RequestEnded
from vectord.observability.exchange import Exchange
from vectord.observability.instruments import Counter, Gauge, Histogram, MetricFamilies, Snapshot
from vectord.products.common.operations import (
    BACKPRESSURE,
    EMBEDS,
    FORWARD_SECONDS,
    INVALID,
    LEFT,
    SECONDS,
    TIMED_OUT,
)
from vectord.schema import DeviceMemory, ModelInfo

TEXTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
ENDPOINT = "/embeddings"  # as its dashboards write its path
STATUSES = ("success", "error", "timeout")
INFO = (
    "model",
    "dense_embedding_model",
    "bge_embed_max_length",
    "qwen_embed_max_length",
    "bge_rerank_max_length",
    "qwen_rerank_max_length",
    "version",
    "gpu_available",
    "device",
)


class SmartEmbedderMetrics(MetricFamilies):
    def __init__(self, version: str, max_lengths: Mapping[str, int]) -> None:
        """max_lengths: bge_embed_max_length and its like."""
        self._fixed = {name: str(length) for name, length in max_lengths.items()} | {"version": version}
        self.requests = Counter("embedding_requests", "Requests for vectors", ("endpoint", "model", "status"))
        self.rejected = Counter("embedding_requests_rejected", "Requests refused before any work", ("reason",))
        self.sentences = Counter("embedding_sentences_processed", "Texts embedded")
        self.seconds = Histogram(
            "embedding_request_duration_seconds", "Time a request for vectors takes", SECONDS, ("endpoint",)
        )
        self.batch_texts = Histogram("embedding_batch_size", "Texts a batch", TEXTS)
        self.forward_seconds = Histogram(
            "embedding_gpu_inference_duration_seconds", "Time a batch takes on the device", FORWARD_SECONDS
        )
        self.queue = Gauge("embedding_queue_size", "Texts waiting")
        self.active = Gauge("embedding_active_requests", "Requests for vectors under way")
        self.rerank_requests = Counter("rerank_requests", "Requests to rerank", ("status",))
        self.rerank_rejected = Counter(
            "rerank_requests_rejected", "Requests to rerank refused before any work", ("reason",)
        )
        self.pairs = Counter("rerank_pairs_processed", "Passages scored")
        self.rerank_seconds = Histogram("rerank_request_duration_seconds", "Time a request to rerank takes", SECONDS)
        self.rerank_forward_seconds = Histogram(
            "rerank_inference_duration_seconds", "Time a batch of pairs takes on the device", FORWARD_SECONDS
        )
        self.rerank_active = Gauge("rerank_active_requests", "Requests to rerank under way")
        self.allocated = Gauge("gpu_memory_allocated_bytes", "Memory of GPUs that tensors take; 0 without a GPU")
        self.reserved = Gauge("gpu_memory_reserved_bytes", "Memory of GPUs that this process holds")
        self.free = Gauge("gpu_memory_free_bytes", "Memory of GPUs that nobody holds")
        self.total = Gauge("gpu_memory_total_bytes", "Memory that GPUs have")  # Semantic Explorer's too
        self.old_allocated = Gauge("embedding_gpu_memory_allocated_bytes", "As gpu_memory_allocated_bytes")
        self.old_reserved = Gauge("embedding_gpu_memory_reserved_bytes", "As gpu_memory_reserved_bytes")
        self.info = Gauge("embedding_server_info", "Always 1; the labels tell what is served", INFO)
        for reason in ("rate_limit", "backpressure", "auth"):
            self.rejected.expect(reason)
        for reason in ("rate_limit", "backpressure"):
            self.rerank_rejected.expect(reason)
        for status in ("success", "error", "timeout"):
            self.rerank_requests.expect(status)
        self.seconds.expect(ENDPOINT)
        self.show((), {})

    def expect_model(self, model: ModelInfo) -> None:
        if model.outputs:
            for status in STATUSES:
                self.requests.expect(ENDPOINT, model.name, status)

    def handlers(self) -> Mapping[type, Callable[[Any], None]]:
        return {
            Exchange: self.http_answered,
            ActiveRequestsChanged: self.active_changed,
            RequestEnded: self.request_ended,
            BatchRan: self.batch_ran,
            QueueChanged: lambda event: self.queue.set(event.texts),
        }

    def http_answered(self, exchange: Exchange) -> None:
        """A wrong key counts as a request for embeddings, on any route."""
        if exchange.error == "Unauthorized":
            self.rejected.add(1, "auth")
        elif exchange.error == "RateLimited":
            (self.rerank_rejected if "rerank" in exchange.route else self.rejected).add(1, "rate_limit")

    def active_changed(self, event: ActiveRequestsChanged) -> None:
        if event.operation in EMBEDS:
            self.active.add(event.change)
        elif event.operation == "rerank":
            self.rerank_active.add(event.change)

    def request_ended(self, event: RequestEnded) -> None:
        if event.error in INVALID or event.error in LEFT:
            return
        if event.operation in EMBEDS:
            self._embed_answered(event)
        elif event.operation == "rerank":
            self._rerank_answered(event)

    def batch_ran(self, event: BatchRan) -> None:
        if event.scores:
            self.rerank_forward_seconds.observe(event.seconds)
            return
        self.batch_texts.observe(event.texts)
        self.forward_seconds.observe(event.seconds)

    def look(self, snapshot: Snapshot) -> None:
        self.show(snapshot.models, snapshot.gauges.devices)

    def show(self, models: Sequence[ModelInfo], devices: Mapping[str, DeviceMemory]) -> None:
        for gauge, name in (
            (self.allocated, "allocated"),
            (self.reserved, "reserved"),
            (self.free, "free"),
            (self.total, "total"),
            (self.old_allocated, "allocated"),
            (self.old_reserved, "reserved"),
        ):
            gauge.set(sum(getattr(memory, name) for memory in devices.values()))
        self.info.values = {tuple(map(self._facts(models).__getitem__, INFO)): 1.0}

    def _embed_answered(self, event: RequestEnded) -> None:
        if event.error in BACKPRESSURE:
            self.rejected.add(1, "backpressure")
            return
        endpoint = event.caller.route
        self.requests.add(1, endpoint, event.model, _status(event.error))
        self.seconds.observe(event.timings.total_s, endpoint)
        if event.error is None:
            self.sentences.add(event.texts)

    def _rerank_answered(self, event: RequestEnded) -> None:
        """Unlike an embedding, one that is refused for load is an error, too."""
        if event.error in BACKPRESSURE:
            self.rerank_rejected.add(1, "backpressure")
        self.rerank_requests.add(1, _status(event.error))
        self.rerank_seconds.observe(event.timings.total_s)
        if event.error is None:
            self.pairs.add(event.texts)

    def _facts(self, models: Sequence[ModelInfo]) -> dict[str, str]:
        embedder = next((model for model in models if model.outputs), None)
        sparse = next((model for model in models if model.outputs >= {"dense", "sparse", "colbert"}), embedder)
        devices = sorted({name for model in models for name in model.device.split(",")} - {"unknown"})
        shown = {
            "model": sparse.name if sparse else "",
            "dense_embedding_model": embedder.name if embedder else "",
            "gpu_available": str(any(device != "cpu" for device in devices)),
            "device": ",".join(devices) or "unknown",
        }
        return dict.fromkeys(INFO, "") | self._fixed | shown


def _status(error: str | None) -> str:
    if error is None:
        return "success"
    return "timeout" if error in TIMED_OUT else "error"
