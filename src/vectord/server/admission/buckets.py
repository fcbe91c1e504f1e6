"""The token buckets of rate limits, and those in this process's memory. rate_limit.py draws from them.

redis_buckets.py has those in Redis, and cluster/remote forwards draws to the process that has the buckets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Protocol

from vectord.products.common.dialect import Rate

if TYPE_CHECKING:
    import throttled

MAX_DEBT = 10**15  # the burst of a bucket that may go below zero
MAX_RATES = 4096  # cached rates
MAX_BUCKETS = 65_536  # about 300 bytes each; the least recently used are evicted
MIN_WAIT_S = 0.001


class Draw(NamedTuple):
    """Take `amount` tokens from a bucket. 0 takes nothing and requires that the bucket has at least one."""

    rate: Rate
    bucket: str
    amount: int = 1


class Refusal(NamedTuple):
    """place: index of the draw that failed; draws before it were made, later ones were not. wait_s: above 0."""

    place: int
    wait_s: float


class TokenBuckets(Protocol):
    """Named buckets. Each holds at most `burst` tokens and fills at a constant rate."""

    def open(self) -> None:
        """Start slow initialization in the background."""
        ...

    async def draw(self, draws: Sequence[Draw]) -> Refusal | None:
        """Make the draws in order, up to the first that fails."""
        ...

    async def spend(self, rate: Rate, bucket: str, amount: int) -> None:
        """Take `amount` even if the bucket has less; it then owes the rest."""
        ...

    async def close(self) -> None: ...


@lru_cache(MAX_RATES)
def with_debt(rate: Rate) -> Rate:
    """`rate` for draws that may go below zero. GCRA stores one time per bucket, independent of the burst."""
    return replace(rate, burst=MAX_DEBT)


class LocalBuckets:
    """Token buckets in this process's memory. Event loop only, except for the constructor."""

    def __init__(self) -> None:
        """Takes several tenths of a second, for the import of throttled-py; on any thread."""
        import throttled  # noqa: PLC0415 - only servers with limits need it

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
