"""Groups of operations and errors that products' metrics count together; names as in RequestEnded."""

from __future__ import annotations

from vectord.errors import InvalidRequest, Overloaded, TimedOut
from vectord.observability.instruments import error_names

EMBEDS = frozenset({"embed", "documents", "similarity"})
PREDICTS = frozenset({"classify", "rerank"})  # neither tokenize nor decode

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # buckets of request durations

INVALID = error_names(InvalidRequest)
BACKPRESSURE = error_names(Overloaded)
TIMED_OUT = frozenset({TimedOut.__name__, "InferenceTimedOut"})
CANCELLED = frozenset({"Cancelled"})  # the client disconnected before the answer
