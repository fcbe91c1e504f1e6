"""What the engine has done since it started, counted from what it tells its observer. Lives on the event loop."""

from __future__ import annotations

import time
from collections.abc import Collection

from vectord.engine.observer import BatchReport, Observer, RequestReport
from vectord.errors import Overloaded
from vectord.schema import Statistics

EMBEDDING = frozenset({"embed", "documents"})  # operations whose answers are vectors


class Counter:
    """An Observer that counts and passes everything on to another."""

    def __init__(self, then: Observer, embedders: Collection[str]) -> None:
        """embedders: names of the models that make vectors."""
        self._then = then
        self._embedders = embedders
        self._started_s = time.monotonic()
        self._embed_requests = 0
        self._embed_texts = 0
        self._batches = 0
        self._refused_requests = 0
        self._loading: set[str] = set()  # models whose batches are those of their self-test

    def shown(self, device: str) -> Statistics:
        return Statistics(
            uptime_s=time.monotonic() - self._started_s,
            embed_requests=self._embed_requests,
            embed_texts=self._embed_texts,
            batches=self._batches,
            refused_requests=self._refused_requests,
            device=device,
        )

    def request_began(self, operation: str) -> None:
        self._then.request_began(operation)

    def request_ended(self, operation: str) -> None:
        self._then.request_ended(operation)

    def request_answered(self, report: RequestReport) -> None:
        if report.error is None and report.operation in EMBEDDING:
            self._embed_requests += 1
            self._embed_texts += report.texts
        elif report.error == Overloaded.__name__:
            self._refused_requests += 1
        self._then.request_answered(report)

    def batch_ran(self, report: BatchReport) -> None:
        self._batches += report.model in self._embedders and report.model not in self._loading
        self._then.batch_ran(report)

    def queue_changed(self, texts: int, tokens: int) -> None:
        self._then.queue_changed(texts, tokens)

    def cache_looked_up(self, model: str, hits: int, misses: int) -> None:
        self._then.cache_looked_up(model, hits, misses)

    def shared_cache_looked_up(self, model: str, hits: int, misses: int) -> None:
        self._then.shared_cache_looked_up(model, hits, misses)

    def shared_cache_refused(self, model: str, values: int) -> None:
        self._then.shared_cache_refused(model, values)

    def model_changed(self, model: str, state: str, load_seconds: float | None) -> None:
        (self._loading.add if state == "loading" else self._loading.discard)(model)
        self._then.model_changed(model, state, load_seconds)
