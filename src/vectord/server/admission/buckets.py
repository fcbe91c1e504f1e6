"""Types of the token buckets of rate limits. rate_limit.py draws from buckets; local_buckets.py and
redis_buckets.py implement them, and cluster/remote forwards draws to the process that has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple, Protocol

from vectord.products.common.dialect import Rate

MAX_DEBT = 10**15  # the burst of a bucket that may go below zero
MAX_RATES = 4096  # cached rates


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
