"""How the families sort what the engine tells: which operations are whose, and which errors are nobody's fault.

The names are those of engine/observer.py's RequestReport.
"""

from __future__ import annotations

from vectord.errors import InvalidRequest, Overloaded, TimedOut, VectordError

EMBEDS = frozenset({"embed", "documents", "similarity"})
PREDICTS = frozenset({"classify", "rerank"})  # neither tokenize nor decode

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # Smart Embedder's, for requests
FORWARD_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5)  # Smart Embedder's, for forwards


def _family(kind: type[VectordError]) -> frozenset[str]:
    """The names of an error and of all that are one."""
    return frozenset({kind.__name__}).union(*map(_family, kind.__subclasses__()))


INVALID = _family(InvalidRequest)
BACKPRESSURE = _family(Overloaded)
TIMED_OUT = frozenset({TimedOut.__name__, "InferenceTimedOut"})
LEFT = frozenset({"Cancelled"})  # the caller went before there was an answer
