"""An Observer that also tells when a model has changed, so that the front-ends hear of it. Lives on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from vectord.engine.observer import BatchReport, Observer, RequestReport


class Announcing:
    """Passes everything on to another."""

    def __init__(self, then: Observer) -> None:
        self._then = then
        self.announce: Callable[[], None] = lambda: None  # the server's, once there is one

    def request_began(self, operation: str) -> None:
        self._then.request_began(operation)

    def request_ended(self, operation: str) -> None:
        self._then.request_ended(operation)

    def request_answered(self, report: RequestReport) -> None:
        self._then.request_answered(report)

    def batch_ran(self, report: BatchReport) -> None:
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
        self._then.model_changed(model, state, load_seconds)
        asyncio.get_running_loop().call_soon(self.announce)  # when the change is whole
