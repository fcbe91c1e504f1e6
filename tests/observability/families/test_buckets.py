"""Buckets of other products' histograms: a quantile that a dashboard shows changes with them."""

from __future__ import annotations

import pytest

from vectord.observability.instruments import Histogram, instruments_of
from vectord.products.simple_inference_server.metrics import SimpleInferenceServerFamilies
from vectord.products.smart_embedder.metrics import SmartEmbedderFamilies

REQUESTS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
FORWARDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5)
BUCKETS = {
    "embedding_request_duration_seconds": REQUESTS,
    "embedding_batch_size": (1, 2, 4, 8, 16, 32, 64, 128, 256),
    "embedding_gpu_inference_duration_seconds": FORWARDS,
    "rerank_request_duration_seconds": REQUESTS,
    "rerank_inference_duration_seconds": FORWARDS,
    "embedding_request_latency_seconds": (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
}


@pytest.mark.parametrize("name", BUCKETS)
def test_buckets_are_those_of_the_product(name: str) -> None:
    """As its source has them."""
    families = (SmartEmbedderFamilies("0", {}), SimpleInferenceServerFamilies())
    shown = {one.name: one for each in families for one in instruments_of(each) if isinstance(one, Histogram)}
    assert shown[name].bounds == BUCKETS[name]
