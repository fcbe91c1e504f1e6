"""Whether requests are answered: the one rule behind the server's own probes and every product's.

Ready means: no model of the start is still loading, and at least one answers. A model that is not in memory counts as
one that does, and so does one that its first use is loading: requests wait for it, and an orchestrator must not take
the server away for that. A model that failed or stalled takes only itself away from the others, whose requests go on
being answered.
"""

from __future__ import annotations

from vectord.schema import ModelInfo, ModelList

ANSWERING = frozenset({"ready", "unloaded", "loading"})  # states of a model that answers, after the start


def answering(served: ModelList) -> list[ModelInfo]:
    """The models that answer; none while the server starts."""
    return [] if served.starting else [info for info in served.models if info.state in ANSWERING]
