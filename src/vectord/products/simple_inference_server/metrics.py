"""embedding_*: Simple Inference Server's families."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vectord.engine.events import CacheLookedUp, RequestEnded
from vectord.observability.exchange import Exchange
from vectord.observability.instruments import Counter, Histogram, MetricFamilies
from vectord.products.common.operations import BACKPRESSURE, EMBEDS
from vectord.schema import ModelInfo

SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class SimpleInferenceServerMetrics(MetricFamilies):
    def __init__(self) -> None:
        self.requests = Counter("embedding_requests", "Requests for vectors, by HTTP status", ("model", "status"))
        self.cache_hits = Counter("embedding_cache_hits", "Texts answered from the cache", ("model",))
        self.cache_misses = Counter("embedding_cache_misses", "Texts not in the cache", ("model",))
        self.seconds = Histogram(
            "embedding_request_latency_seconds", "Duration of a request for vectors", SECONDS, ("model",)
        )
        self.rejections = Counter("embedding_queue_rejections", "Requests for vectors rejected because of load")

    def expect_model(self, model: ModelInfo) -> None:
        self.cache_hits.expect(model.name)
        self.cache_misses.expect(model.name)
        if model.outputs:
            self.requests.expect(model.name, "200")
            self.seconds.expect(model.name)

    def handlers(self) -> Mapping[type, Callable[[Any], None]]:
        return {
            Exchange: self.http_answered,
            RequestEnded: self.request_ended,
            CacheLookedUp: self.cache_looked_up,
        }

    def http_answered(self, exchange: Exchange) -> None:
        if exchange.route == "/v1/embeddings":
            self.requests.add(1, exchange.model or "", str(exchange.status))

    def request_ended(self, event: RequestEnded) -> None:
        if event.operation not in EMBEDS:
            return
        if event.error in BACKPRESSURE:
            self.rejections.add(1)
        elif event.model and event.error is None:
            self.seconds.observe(event.timings.total_s, event.model)

    def cache_looked_up(self, event: CacheLookedUp) -> None:
        if not event.shared:
            self.cache_hits.add(event.hits, event.model)
            self.cache_misses.add(event.misses, event.model)
