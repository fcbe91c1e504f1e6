"""Token buckets in this process's memory. rate_limit.py imports this module in a thread, because importing throttled-py
takes several tenths of a second, and calls it on the event loop."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import lru_cache

import throttled

from vectord.products.common.dialect import Rate
from vectord.server.admission.buckets import MAX_RATES, Draw, Refusal

MAX_BUCKETS = 65_536  # about 300 bytes each; the least recently used are evicted
MIN_WAIT_S = 0.001


class LocalBuckets:
    def __init__(self) -> None:
        store = throttled.MemoryStore(options={"MAX_SIZE": MAX_BUCKETS})

        def limiter(rate: Rate) -> throttled.BaseRateLimiter:
            quota = throttled.per_duration(timedelta(seconds=rate.period_s), limit=rate.amount, burst=rate.burst)
            return throttled.Throttled(using="gcra", quota=quota, store=store).limiter

        self._limiter = lru_cache(MAX_RATES)(limiter)

    def draw(self, draws: Sequence[Draw]) -> Refusal | None:
        """See TokenBuckets.draw."""
        for place, (rate, bucket, amount) in enumerate(draws):
            limiter = self._limiter(rate)
            if amount:
                result = limiter.limit(bucket, amount)
                wait_s = max(result.state.retry_after, MIN_WAIT_S) if result.limited else 0.0
            else:
                wait_s = limiter.peek(bucket).reset_after - (rate.burst - 1) * rate.period_s / rate.amount
            if wait_s > 0:
                return Refusal(place, wait_s)
        return None
