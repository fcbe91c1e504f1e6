"""Events: what the engine reports while it works. Metrics and the engine's own statistics read them.

An observer is a callable. The engine calls it on its event loop, so it must not block. Another process receives the
same events, encoded (cluster/remote).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from vectord.errors import Overloaded, QueueTimedOut
from vectord.schema import Caller, Gpu, Statistics, TextLength, Timings

NO_TIMINGS = Timings()

# Structs of msgspec: frozen like a dataclass, made in 0.1 us where a frozen dataclass takes 1.4 us, and the codec
# between processes distinguishes the members of a union.


class RequestEnded(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A request was answered, refused or cancelled. Each part of a MultiRequest is one request."""

    caller: Caller
    operation: str  # embed, documents, similarity, rerank, classify, tokenize, decode; multi: all parts refused
    model: str = ""  # "" if none was found
    error: str | None = None  # None: success; else a VectordError's class, Cancelled, or InternalError
    texts: int = 0
    tokens: int = 0
    lengths: Sequence[TextLength] = ()
    timings: Timings = NO_TIMINGS


class BatchRan(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """One forward pass ended."""

    model: str
    texts: int
    tokens: int
    padding_tokens: int  # computed in addition, by a backend that pads
    bulk_tokens: int  # tokens from the bulk lane
    max_tokens: int  # the token budget of a batch
    device: str  # a name from ModelInfo.devices; "": no device ran the batch
    scores: bool  # True: pairs or labels were scored; False: vectors were computed
    seconds: float
    streams: int  # batches of this model that can run at the same time, over all its devices
    failed: bool


class CacheLookedUp(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The texts of one request were looked up in a cache."""

    model: str
    hits: int
    misses: int
    shared: bool = False  # True: in the shared cache, for the texts that the cache in memory missed
    rejected: int = 0  # misses whose stored value was damaged or signed with another secret


class ModelStateChanged(msgspec.Struct, frozen=True, tag=True):
    model: str
    state: str  # unloaded, loading, ready, stalled or failed
    load_seconds: float | None = None


Event: TypeAlias = RequestEnded | BatchRan | CacheLookedUp | ModelStateChanged
Observer: TypeAlias = Callable[[Event], None]


def discard(event: Event) -> None:
    """The observer that does nothing."""


EMBEDDING = frozenset({"embed", "documents"})  # operations whose results are vectors
QUEUED = EMBEDDING | {"similarity", "rerank"}  # operations whose refusals are counted
REFUSED = frozenset({Overloaded.__name__, QueueTimedOut.__name__})


class StatisticsCounter:
    """An observer for the engine's own use."""

    def __init__(self, embeds: Callable[[str], bool]) -> None:
        """embeds: whether the model with this name computes vectors."""
        self._embeds = embeds
        self._started_s = time.monotonic()
        self._embed_requests = 0
        self._embed_texts = 0
        self._batches = 0
        self._refused_requests = 0
        self.rate_limited = 0  # requests that the server rejected
        self._loading: set[str] = set()  # models whose batches are part of their self-test

    def statistics(self, device: str, gpu: Gpu | None) -> Statistics:
        return Statistics(
            uptime_s=time.monotonic() - self._started_s,
            embed_requests=self._embed_requests,
            embed_texts=self._embed_texts,
            batches=self._batches,
            refused_requests=self._refused_requests + self.rate_limited,
            device=device,
            gpu=gpu,
        )

    def observe(self, event: Event) -> None:
        match event:
            case RequestEnded(error=None) if event.operation in EMBEDDING:
                self._embed_requests += 1
                self._embed_texts += event.texts
            case RequestEnded() if event.error in REFUSED and event.operation in QUEUED:
                self._refused_requests += 1
            case BatchRan():
                self._batches += self._embeds(event.model) and event.model not in self._loading
            case ModelStateChanged():
                (self._loading.add if event.state == "loading" else self._loading.discard)(event.model)
