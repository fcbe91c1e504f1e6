"""What the engine has done since it started, counted from what it tells its observer. Lives on the event loop."""

from __future__ import annotations

import time

from vectord.engine.observer import Observer
from vectord.errors import Overloaded
from vectord.schema import Statistics, Timings

EMBEDDING = frozenset({"embed", "documents"})  # operations whose answers are vectors


class Counter:
    """An Observer that counts and passes everything on to another."""

    def __init__(self, then: Observer) -> None:
        self._then = then
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

    def request_answered(
        self, model: str, operation: str, error: str | None, texts: int, tokens: int, timings: Timings
    ) -> None:
        if error is None and operation in EMBEDDING:
            self._embed_requests += 1
            self._embed_texts += texts
        elif error == Overloaded.__name__:
            self._refused_requests += 1
        self._then.request_answered(model, operation, error, texts, tokens, timings)

    def batch_ran(self, model: str, texts: int, tokens: int, seconds: float, failed: bool) -> None:
        self._batches += model not in self._loading
        self._then.batch_ran(model, texts, tokens, seconds, failed)

    def queue_changed(self, texts: int, tokens: int) -> None:
        self._then.queue_changed(texts, tokens)

    def cache_looked_up(self, model: str, hits: int, misses: int) -> None:
        self._then.cache_looked_up(model, hits, misses)

    def model_changed(self, model: str, state: str, load_seconds: float | None) -> None:
        (self._loading.add if state == "loading" else self._loading.discard)(model)
        self._then.model_changed(model, state, load_seconds)
