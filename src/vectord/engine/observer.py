"""What the engine tells whoever watches: metrics in production, nobody in most tests. Calls must not block."""

from __future__ import annotations

from typing import Protocol

from vectord.schema import Timings


class Observer(Protocol):
    """Every method is called on the event loop."""

    def request_answered(
        self, model: str, operation: str, error: str | None, texts: int, tokens: int, timings: Timings
    ) -> None:
        """operation: embed, documents, similarity, rerank, classify, tokenize, decode, and several for those that came
        as one and were refused as one; model: "" if none was found.

        error: None for success, the VectordError's class name, Cancelled for a caller who left, or InternalError.
        """
        ...

    def batch_ran(self, model: str, texts: int, tokens: int, seconds: float, failed: bool) -> None: ...

    def queue_changed(self, texts: int, tokens: int) -> None: ...

    def cache_looked_up(self, model: str, hits: int, misses: int) -> None: ...

    def model_changed(self, model: str, state: str, load_seconds: float | None) -> None: ...


class Silent:
    """An Observer that keeps nothing."""

    def request_answered(
        self, model: str, operation: str, error: str | None, texts: int, tokens: int, timings: Timings
    ) -> None:
        pass

    def batch_ran(self, model: str, texts: int, tokens: int, seconds: float, failed: bool) -> None:
        pass

    def queue_changed(self, texts: int, tokens: int) -> None:
        pass

    def cache_looked_up(self, model: str, hits: int, misses: int) -> None:
        pass

    def model_changed(self, model: str, state: str, load_seconds: float | None) -> None:
        pass
