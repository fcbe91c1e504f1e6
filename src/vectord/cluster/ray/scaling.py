"""The number of replicas for a load. Ray's controller calls it every few seconds, with averages over time.

Ray pickles this module by value and applies its own bounds and delays to the result, so nothing here imports Ray.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

WAITING_TOKENS = "waiting_tokens"  # queued in a replica
BUSY = "busy"  # share of time in which a replica's batches ran
MAX_BUSY = 0.8  # above it, queues grow faster than load


class WaitingTokensPolicy:
    """Enough replicas that each has at most `tokens_per_replica` queued tokens and is not busy all the time.

    With the tokens alone, a cluster that just keeps up would shrink until it does not.
    """

    def __init__(self, tokens_per_replica: float) -> None:
        self._tokens_per_replica = tokens_per_replica

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """context: Ray's AutoscalingContext."""
        reported: Mapping[str, Mapping[Any, float]] = context.aggregated_metrics or {}
        waiting, busy = reported.get(WAITING_TOKENS, {}), reported.get(BUSY, {})
        if not waiting:  # the replicas are starting
            return context.target_num_replicas, {}
        by_tokens = math.ceil(sum(waiting.values()) / self._tokens_per_replica)
        by_time = math.ceil(sum(busy.values()) / MAX_BUSY)
        return max(by_tokens, by_time), {}
