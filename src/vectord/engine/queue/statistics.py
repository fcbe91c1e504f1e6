"""Counts of answered requests and batches since the start. Belongs to the event loop."""

from __future__ import annotations

import time
from collections.abc import Collection

from vectord.engine.events import BatchRan, Event, ModelStateChanged, RequestEnded
from vectord.errors import Overloaded
from vectord.schema import Statistics

EMBEDDING = frozenset({"embed", "documents"})  # operations whose results are vectors


class StatisticsCounter:
    """An observer for the engine's own use."""

    def __init__(self, embedders: Collection[str]) -> None:
        """embedders: names of the models that compute vectors."""
        self._embedders = embedders
        self._started_s = time.monotonic()
        self._embed_requests = 0
        self._embed_texts = 0
        self._batches = 0
        self._refused_requests = 0
        self._loading: set[str] = set()  # models whose batches are part of their self-test

    def statistics(self, device: str) -> Statistics:
        return Statistics(
            uptime_s=time.monotonic() - self._started_s,
            embed_requests=self._embed_requests,
            embed_texts=self._embed_texts,
            batches=self._batches,
            refused_requests=self._refused_requests,
            device=device,
        )

    def observe(self, event: Event) -> None:
        match event:
            case RequestEnded(error=None) if event.operation in EMBEDDING:
                self._embed_requests += 1
                self._embed_texts += event.texts
            case RequestEnded(error=Overloaded.__name__):
                self._refused_requests += 1
            case BatchRan():
                self._batches += event.model in self._embedders and event.model not in self._loading
            case ModelStateChanged():
                (self._loading.add if event.state == "loading" else self._loading.discard)(event.model)
