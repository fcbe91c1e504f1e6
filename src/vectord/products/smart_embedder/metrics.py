"""Smart Embedder's metric families, /stats, its keys of /health, and its log lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vectord import __version__
from vectord.engine.events import BatchRan, ModelStateChanged, RequestEnded
from vectord.observability.exchange import Exchange
from vectord.observability.instruments import Counter, Gauge, Histogram, MetricFamilies, Snapshot
from vectord.products.common.operations import BACKPRESSURE, CANCELLED, EMBEDS, INVALID, SECONDS, TIMED_OUT
from vectord.schema import DeviceMemory, Gpu, ModelInfo, ModelList

FORWARD_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5)
TEXTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
ENDPOINT = "/embeddings"  # the path on its dashboards
STATUSES = ("success", "error", "timeout")

# Labels of embedding_server_info that are settings, with the product's defaults.
MAX_LENGTHS = {
    "bge_embed_max_length": 8192,
    "qwen_embed_max_length": 32_768,
    "bge_rerank_max_length": 8192,
    "qwen_rerank_max_length": 32_768,
}
INFO = ("model", "dense_embedding_model", *MAX_LENGTHS, "version", "gpu_available", "device")

# Name, field of DeviceMemory, meaning. The old names are those of the product's first version.
GPU_MEMORY = (
    ("gpu_memory_allocated_bytes", "allocated", "Memory of tensors on GPUs; 0 without a GPU"),
    ("gpu_memory_reserved_bytes", "reserved", "Memory of GPUs that this process holds"),
    ("gpu_memory_free_bytes", "free", "Free memory of GPUs"),
    ("gpu_memory_total_bytes", "total", "Memory of GPUs"),
    ("embedding_gpu_memory_allocated_bytes", "allocated", "The same as gpu_memory_allocated_bytes"),
    ("embedding_gpu_memory_reserved_bytes", "reserved", "The same as gpu_memory_reserved_bytes"),
)


class SmartEmbedderMetrics(MetricFamilies):
    def __init__(self, settings: Mapping[str, Any]) -> None:
        """settings: those of the models, by name."""
        self._began_s = time.monotonic()
        self._loading: set[str] = set()  # models
        self._fixed = {name: str(settings.get(name) or default) for name, default in MAX_LENGTHS.items()}
        self.requests = Counter("embedding_requests", "Requests for vectors", ("endpoint", "status"))
        self.rejected = Counter("embedding_requests_rejected", "Rejected requests for vectors", ("reason",))
        self.sentences = Counter("embedding_sentences_processed", "Texts embedded")
        self.seconds = Histogram(
            "embedding_request_duration_seconds", "Duration of a request for vectors", SECONDS, ("endpoint",)
        )
        self.batch_texts = Histogram("embedding_batch_size", "Texts per batch", TEXTS)
        self.forward_seconds = Histogram(
            "embedding_gpu_inference_duration_seconds", "Duration of a batch on the device", FORWARD_SECONDS
        )
        self.queue = Gauge("embedding_queue_size", "Queued requests for vectors")
        self.active = Gauge("embedding_active_requests", "Active requests for vectors")
        self.rerank_requests = Counter("rerank_requests", "Requests to rerank", ("status",))
        self.rerank_rejected = Counter("rerank_requests_rejected", "Rejected requests to rerank", ("reason",))
        self.pairs = Counter("rerank_pairs_processed", "Scored passages")
        self.rerank_seconds = Histogram("rerank_request_duration_seconds", "Duration of a request to rerank", SECONDS)
        self.rerank_forward_seconds = Histogram(
            "rerank_inference_duration_seconds", "Duration of a batch of pairs on the device", FORWARD_SECONDS
        )
        self.rerank_active = Gauge("rerank_active_requests", "Active requests to rerank")
        self.info = Gauge("embedding_server_info", "Always 1; the labels name models and device", INFO)
        self._memory = [(Gauge(name, meaning), field) for name, field, meaning in GPU_MEMORY]
        for reason in ("rate_limit", "backpressure", "auth"):
            self.rejected.expect(reason)
        for reason in ("rate_limit", "backpressure"):
            self.rerank_rejected.expect(reason)
        for status in STATUSES:
            self.requests.expect(ENDPOINT, status)
            self.rerank_requests.expect(status)
        self.seconds.expect(ENDPOINT)
        self.show((), {})

    def instruments(self) -> Sequence[Counter | Histogram]:
        return [*super().instruments(), *(gauge for gauge, _ in self._memory)]

    def handlers(self) -> Mapping[type, Callable[[Any], None]]:
        return {
            Exchange: self.http_answered,
            RequestEnded: self.request_ended,
            BatchRan: self.batch_ran,
            ModelStateChanged: self.model_changed,
        }

    def http_answered(self, exchange: Exchange) -> None:
        """A wrong key counts as a request for embeddings, on any route. An empty input counts as an error: the product
        finds it in its handler, after it has counted the request."""
        if exchange.error == "EmptyInput" and exchange.dialect == "smart_embedder":
            if "rerank" in exchange.route:
                self.rerank_requests.add(1, "error")
            else:
                self.requests.add(1, exchange.route, "error")
        elif exchange.error == "Unauthorized":
            self.rejected.add(1, "auth")
        elif exchange.error == "RateLimited":
            (self.rerank_rejected if "rerank" in exchange.route else self.rejected).add(1, "rate_limit")

    def request_ended(self, event: RequestEnded) -> None:
        """A rejected request to rerank counts as an error too; a rejected request for vectors does not."""
        if event.error in INVALID or event.error in CANCELLED:
            return
        status = "success" if event.error is None else "timeout" if event.error in TIMED_OUT else "error"
        if event.operation in EMBEDS and event.error in BACKPRESSURE:
            self.rejected.add(1, "backpressure")
        elif event.operation in EMBEDS:
            endpoint = event.caller.route
            self.requests.add(1, endpoint, status)
            self.seconds.observe(event.timings.total_s, endpoint)
            self.sentences.add(event.texts if event.error is None else 0)
        elif event.operation == "rerank":
            if event.error in BACKPRESSURE:
                self.rerank_rejected.add(1, "backpressure")
            self.rerank_requests.add(1, status)
            self.rerank_seconds.observe(event.timings.total_s)
            self.pairs.add(event.texts if event.error is None else 0)

    def model_changed(self, event: ModelStateChanged) -> None:
        if event.state == "loading":
            self._loading.add(event.model)
        else:
            self._loading.discard(event.model)

    def batch_ran(self, event: BatchRan) -> None:
        if event.model in self._loading:  # its self-test
            return
        if event.scores:
            self.rerank_forward_seconds.observe(event.seconds)
            return
        self.batch_texts.observe(event.texts)
        self.forward_seconds.observe(event.seconds)

    def look(self, snapshot: Snapshot) -> None:
        active = snapshot.gauges.active
        self.queue.set(snapshot.gauges.queued_embeds)
        self.active.set(sum(active.get(operation, 0) for operation in EMBEDS))
        self.rerank_active.set(active.get("rerank", 0))
        self.show(snapshot.models, snapshot.gauges.devices)

    def figures(self, models: Sequence[ModelInfo]) -> Mapping[str, Any]:
        """The body of /stats. It counts requests for vectors; `rejected_requests` counts those for scores, too."""
        seconds = int(time.monotonic() - self._began_s)
        answered = [count for (_, status), count in self.requests.values.items() if status == "success"]
        rejected = [*self.rejected.values.items(), *self.rerank_rejected.values.items()]
        gpu = gpu_of(models)
        return {
            "uptime": f"{seconds // 3600}h {seconds // 60 % 60}m {seconds % 60}s",
            "uptime_seconds": seconds,
            "total_requests": int(sum(answered)),
            "total_sentences": int(self.sentences.total()),
            "total_batches": sum(self.batch_texts.expect().counts),
            "rejected_requests": int(sum(count for (reason,), count in rejected if reason != "auth")),
            "hardware": f"{gpu.name} ({gpu.memory_gb:.2f} GB)" if gpu else devices_shown(models),
        }

    def show(self, models: Sequence[ModelInfo], devices: Mapping[str, DeviceMemory]) -> None:
        for gauge, field in self._memory:
            gauge.set(sum(getattr(memory, field) for memory in devices.values()))
        embedder, sparse = embedding_models(models)
        names = device_names(models)
        facts = self._fixed | {
            "model": sparse.name if sparse else "",
            "dense_embedding_model": embedder.name if embedder else "",
            "version": __version__,
            "gpu_available": str(any(name != "cpu" for name in names)),
            "device": ",".join(names) or "unknown",
        }
        self.info.values = {tuple(facts[label] for label in INFO): 1.0}


# --- /health and the log --------------------------------------------------------------------------------------


def ready_lines(models: Sequence[ModelInfo]) -> Sequence[str]:
    reranker = any(model.reranks and model.state == "ready" for model in models)
    return (*(["Reranker ready."] if reranker else []), "Server ready to accept requests")


def embedding_models(models: Sequence[ModelInfo]) -> tuple[ModelInfo | None, ModelInfo | None]:
    """The first model that embeds, and the first that makes all three kinds of vectors, else the same."""
    embedder = next((model for model in models if model.outputs), None)
    return embedder, next((model for model in models if model.outputs >= {"dense", "sparse", "colbert"}), embedder)


def device_names(models: Sequence[ModelInfo]) -> list[str]:
    """The devices of loaded models, each once."""
    return sorted({name for model in models for name in model.device.split(",")} - {"unknown"})


def gpu_of(models: Sequence[ModelInfo]) -> Gpu | None:
    return next((model.gpu for model in models if model.gpu is not None), None)


def devices_shown(models: Sequence[ModelInfo]) -> str:
    """The devices of loaded models, where their GPU is not known."""
    devices = device_names(models)
    return ", ".join(name for name in devices if name != "cpu") or ("CPU" if devices else "unknown")


VERSION = "1.2.0"  # of the product whose document this package follows
CPU_SIZES = (1, 8)
# Its sizes by the GPU's memory: (GB exceeded, batch_size, max_requests_in_batch), for texts of at most SHORT_TOKENS
# and for longer ones.
SHORT_TOKENS = 512
SHORT_SIZES = ((8, 128, 64), (6, 64, 32), (4, 32, 16), (0, 16, 16))
LONG_SIZES = ((8, 12, 16), (4, 6, 16), (0, 3, 16))


def original_sizes(models: Sequence[ModelInfo | None], gpu: Gpu | None) -> Sequence[int]:
    """The batch_size and max_requests_in_batch that the product reports on this hardware."""
    if gpu is None:
        return CPU_SIZES
    longest = max((model.max_input_tokens for model in models if model is not None), default=0)
    table = SHORT_SIZES if longest <= SHORT_TOKENS else LONG_SIZES
    return next((sizes for above_gb, *sizes in table if gpu.memory_gb > above_gb), table[-1][1:])


def health(served: ModelList, ready: bool) -> dict[str, Any]:
    """Models and device; 0 and "unknown" before a model is loaded. Version and sizes are those of the product."""
    embedder, sparse = embedding_models(served.models)
    reranker = next((model for model in served.models if model.reranks), None)
    devices = device_names(served.models)
    gpus = [device for device in devices if device != "cpu"]
    gpu = gpu_of(served.models)
    batch_size, max_requests = original_sizes((embedder, sparse), gpu)
    return {
        "gpu": {
            "available": bool(gpus),
            "device_info": gpu.name if gpu else devices_shown(served.models),
            "memory_gb": gpu.memory_gb if gpu else 0,
            "device_count": len(gpus),
            "multi_gpu_enabled": len(gpus) > 1,
            "configured_devices": devices,
        },
        "model": sparse.name if sparse else None,
        "dense_embedding_model": embedder.name if embedder else None,
        "reranker_model": reranker.name if reranker else None,
        "max_input_length": embedder.max_input_tokens if embedder else 0,
        "version": VERSION,
        "batch_size": batch_size,
        "max_requests_in_batch": max_requests,
    }
