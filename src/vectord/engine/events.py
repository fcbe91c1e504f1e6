"""Events: what the engine reports while it works. Metrics read them.

An observer is a callable. The engine calls it on its event loop, so it must not block. Another process receives the
same events, encoded (cluster/remote).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from vectord.schema import Caller, TextLengths, Timings

NO_TIMINGS = Timings()


class RequestEnded(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A request was answered, refused or cancelled. Each part of a MultiRequest is one request."""

    caller: Caller
    operation: str  # embed, documents, similarity, rerank, classify, tokenize, decode; multi: all parts refused
    model: str = ""  # "" if none was found
    error: str | None = None  # None: success; else a VectordError's class, Cancelled, or InternalError
    texts: int = 0
    tokens: int = 0
    lengths: TextLengths = TextLengths()
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
