"""embedding_*: Simple Inference Server's families, but for embedding_requests_total (smart_embedder.py says why)."""

from __future__ import annotations

from vectord.engine.observer import RequestReport
from vectord.observability.instruments import Counter, Histogram
from vectord.products.common.operations import BACKPRESSURE, EMBEDS
from vectord.schema import ModelInfo

SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class SimpleInferenceServerFamilies:
    def __init__(self) -> None:
        self.cache_hits = Counter("embedding_cache_hits", "Texts answered from the cache", ("model",))
        self.cache_misses = Counter("embedding_cache_misses", "Texts not in the cache", ("model",))
        self.seconds = Histogram(
            "embedding_request_latency_seconds", "Time a request for vectors takes", SECONDS, ("model",)
        )
        self.rejections = Counter("embedding_queue_rejections", "Requests for vectors refused for load")

    def expect_model(self, model: ModelInfo) -> None:
        self.cache_hits.expect(model.name)
        self.cache_misses.expect(model.name)
        if model.outputs:
            self.seconds.expect(model.name)

    def request_answered(self, report: RequestReport) -> None:
        if report.operation not in EMBEDS:
            return
        if report.error in BACKPRESSURE:
            self.rejections.add(1)
        elif report.model and report.error is None:
            self.seconds.observe(report.timings.total_s, report.model)

    def cache_looked_up(self, model: str, hits: int, misses: int) -> None:
        self.cache_hits.add(hits, model)
        self.cache_misses.add(misses, model)
