"""What the engine tells whoever watches: metrics in production, nobody in most tests. Calls must not block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from vectord.schema import Caller, TextLength, Timings

NO_TIMINGS = Timings()


@dataclass(slots=True, kw_only=True)  # not frozen: three times as quick to make
class RequestReport:
    """One request that the engine has answered or refused; of those that came as one, each part is one."""

    caller: Caller
    operation: str  # embed, documents, similarity, rerank, classify, tokenize, decode; several: refused as one
    model: str = ""  # "" if none was found
    error: str | None = None  # None: success; the VectordError's class, Cancelled if the caller left, InternalError
    texts: int = 0
    tokens: int = 0
    lengths: Sequence[TextLength] = ()
    timings: Timings = NO_TIMINGS


@dataclass(slots=True, kw_only=True)  # not frozen: three times as quick to make
class BatchReport:
    """One forward."""

    model: str
    texts: int
    tokens: int
    padding_tokens: int  # run beside them, by a backend that pads
    bulk_tokens: int  # those of the bulk lane
    max_tokens: int  # that a forward may have
    device: str  # that ran it, as ModelInfo.devices has it; "": none
    scores: bool  # whether it scored pairs or labels; else it made vectors
    seconds: float
    streams: int  # forwards of the model that may run at once, on all its devices
    failed: bool


class Observer(Protocol):
    """Every method is called on the event loop."""

    def request_began(self, operation: str) -> None:
        """A model is asked. As many times follows `request_ended`, whatever becomes of it."""
        ...

    def request_ended(self, operation: str) -> None: ...

    def request_answered(self, report: RequestReport) -> None: ...

    def batch_ran(self, report: BatchReport) -> None: ...

    def queue_changed(self, texts: int, tokens: int) -> None: ...

    def cache_looked_up(self, model: str, hits: int, misses: int) -> None: ...

    def shared_cache_looked_up(self, model: str, hits: int, misses: int) -> None:
        """For what the cache in memory missed."""
        ...

    def shared_cache_refused(self, model: str, values: int) -> None:
        """Among those misses: something was there that this server does not believe."""
        ...

    def model_changed(self, model: str, state: str, load_seconds: float | None) -> None: ...


class Silent:
    """An Observer that keeps nothing."""

    def request_began(self, operation: str) -> None:
        pass

    def request_ended(self, operation: str) -> None:
        pass

    def request_answered(self, report: RequestReport) -> None:
        pass

    def batch_ran(self, report: BatchReport) -> None:
        pass

    def queue_changed(self, texts: int, tokens: int) -> None:
        pass

    def cache_looked_up(self, model: str, hits: int, misses: int) -> None:
        pass

    def shared_cache_looked_up(self, model: str, hits: int, misses: int) -> None:
        pass

    def shared_cache_refused(self, model: str, values: int) -> None:
        pass

    def model_changed(self, model: str, state: str, load_seconds: float | None) -> None:
        pass


class Passing:
    """An Observer that tells another. Whoever wants to hear of one thing as well inherits from it."""

    def __init__(self, then: Observer) -> None:
        self._then = then

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
