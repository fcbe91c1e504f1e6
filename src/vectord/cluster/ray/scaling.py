"""How many replicas the work that waits asks for. Ray's controller calls it every few seconds, with means over time.

Ray takes this module there as it is (by value), and applies its bounds, delays and factors to what comes out: so
nothing here imports Ray.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

WAITING_TOKENS = "waiting_tokens"  # queued in a replica's schedulers
BUSY = "busy"  # share of the last seconds in which a replica's forwards ran
BUSY_ENOUGH = 0.8  # above it, queues grow faster than load does


class Context(Protocol):
    """What is read of Ray's AutoscalingContext."""

    target_num_replicas: int

    @property
    def aggregated_metrics(self) -> Mapping[str, Mapping[Any, float]] | None: ...


class TokensWaiting:
    """A policy: replicas enough that each has `tokens_per_replica` waiting at most, and is not busy all the time.

    By tokens alone, a cluster that just keeps up would shrink until it does not.
    """

    def __init__(self, tokens_per_replica: float) -> None:
        self._tokens_per_replica = tokens_per_replica

    def __call__(self, context: Context) -> tuple[int, dict[str, Any]]:
        told = context.aggregated_metrics or {}
        waiting, busy = told.get(WAITING_TOKENS, {}), told.get(BUSY, {})
        if not waiting:  # replicas that are starting have told nothing yet
            return context.target_num_replicas, {}
        by_tokens = math.ceil(sum(waiting.values()) / self._tokens_per_replica)
        by_time = math.ceil(sum(busy.values()) / BUSY_ENOUGH)
        return max(by_tokens, by_time), {}
