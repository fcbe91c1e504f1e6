"""The token buckets of rate limits, and those in this process's memory. rate_limit.py draws from them.

redis_buckets.py has those in Redis, and cluster/remote forwards draws to the process that has the buckets.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from vectord.products.common.dialect import Rate

MAX_DEBT = 10**15  # the burst of a bucket that may go below zero
MAX_RATES = 4096  # cached rates
MAX_BUCKETS = 65_536  # about 200 bytes each; the least recently used are evicted
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
    """Token buckets in this process's memory. Event loop only.

    The generic cell rate algorithm: a bucket is the time at which it will be full again. The script of redis_buckets.py
    has the same arithmetic.
    """

    now_s = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self._full_s: OrderedDict[str, float] = OrderedDict()  # the least recently used first

    def draw(self, draws: Sequence[Draw]) -> Refusal | None:
        """See TokenBuckets.draw."""
        for place, (rate, bucket, amount) in enumerate(draws):
            now_s = self.now_s()
            full_s = max(now_s, self._full_s.pop(bucket, now_s))
            token_s = rate.period_s / rate.amount
            wait_s = full_s - now_s + (max(amount, 1) - rate.burst) * token_s
            self._full_s[bucket] = full_s if wait_s > 0 else full_s + amount * token_s
            if len(self._full_s) > MAX_BUCKETS:
                self._full_s.popitem(last=False)
            if wait_s > 0:
                return Refusal(place, max(wait_s, MIN_WAIT_S))
        return None
