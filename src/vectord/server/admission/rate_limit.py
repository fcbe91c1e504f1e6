"""Limits how often clients may send requests. Called on the event loop: `check` before the key is checked and the body
is read, `check_dialect` after it on shared paths, and `spend` with the result.

    every route         requests per address, with --rate-limit-requests-per-minute
    a dialect's routes  requests per address or key, as in that product (`Dialect.rate`)
    a key               its own requests and tokens, from the keys file (keys.py)

The tokens of a request are known only after it ran. It is never interrupted, but the next request of its key waits
until the key's debt is repaid.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from vectord.config import ServerConfig
from vectord.errors import RateLimited
from vectord.housekeeping import Breaker
from vectord.products.common.batches import BatchResult
from vectord.products.common.dialect import Dialect, Rate
from vectord.schema import Result, Usage
from vectord.server.admission.buckets import Draw, LocalBuckets, Refusal, TokenBuckets, with_debt
from vectord.server.admission.keys import Key

if TYPE_CHECKING:
    from vectord.server.admission.redis_buckets import RedisBuckets

PERIODS = {1: "second", 60: "minute"}
BURST = 120  # requests at once, from an address without recent requests, unless a minute has fewer
REQUESTS_EXCEEDED = "Rate limit exceeded. Max {limit} requests per {period}."
TOKENS_EXCEEDED = "Token quota exceeded. Max {limit} tokens per minute."

_log = logging.getLogger("vectord.limits")


class RateLimits:
    """One per process: HTTP and gRPC draw from the same buckets."""

    def __init__(self, config: ServerConfig, dialects: Sequence[Dialect], buckets: TokenBuckets | None = None) -> None:
        """buckets: None creates them from `config`."""
        # The settings apply to addresses.
        amount, burst = config.rate_limit_requests_per_minute, config.rate_limit_burst_size
        self.everywhere = Rate(amount, period_s=60, burst=burst or min(amount, BURST)) if amount else None
        self.by_dialect: dict[str, Rate] = {}
        for dialect in dialects if amount != 0 else ():
            rate = dialect.rate
            if rate is not None and (amount is None or rate.per_key):
                if burst is not None and not rate.per_key:
                    rate = replace(rate, burst=burst)
                self.by_dialect[dialect.name] = rate
        self._buckets: TokenBuckets = buckets or Buckets(config.redis_url)

    async def check(self, address: str | None, key: Key | None, dialect: str | None) -> None:
        """Count one request. address: None for a line of a stored batch; dialect: None if the body decides it later."""
        draws = []
        if address is not None and self.everywhere is not None:
            draws.append(Draw(self.everywhere, f"address:{address}"))
        if address is not None and dialect is not None:
            draws += self._dialect_draws(address, key, dialect)
        if key is not None and key.tokens_per_minute is not None:
            draws.append(Draw(_per_minute(key.tokens_per_minute), f"key:{key.name}:tokens", 0))
        if key is not None and key.requests_per_minute is not None:
            draws.append(Draw(_per_minute(key.requests_per_minute), f"key:{key.name}:requests"))
        await self._draw(draws)

    async def check_dialect(self, address: str, key: Key | None, dialect: str) -> None:
        """Count the request for the dialect that its body selected."""
        if dialect in self.by_dialect:
            await self._draw(list(self._dialect_draws(address, key, dialect)))

    async def spend(self, key: Key | None, result: Result | BatchResult) -> None:
        """Subtract the tokens of a result from its key's quota."""
        usage = getattr(result, "usage", None)
        if key is not None and key.tokens_per_minute is not None and isinstance(usage, Usage) and usage.tokens:
            await self._buckets.spend(_per_minute(key.tokens_per_minute), f"key:{key.name}:tokens", usage.tokens)

    async def aclose(self) -> None:
        await self._buckets.close()

    def _dialect_draws(self, address: str, key: Key | None, dialect: str) -> Iterator[Draw]:
        rate = self.by_dialect.get(dialect)
        if rate is not None:
            owner = f"key:{key.name}" if key is not None and rate.per_key else f"address:{address}"
            yield Draw(rate, f"{dialect}:{owner}")

    async def _draw(self, draws: Sequence[Draw]) -> None:
        refusal = await self._buckets.draw(draws) if draws else None
        if refusal is not None:
            raise rate_limited(draws[refusal.place], refusal.wait_s)


def rate_limited(refused: Draw, retry_after_s: float) -> RateLimited:
    rate = refused.rate
    template = TOKENS_EXCEEDED if refused.amount == 0 else REQUESTS_EXCEEDED
    return RateLimited(template, retry_after_s=retry_after_s, limit=rate.amount, period=PERIODS[rate.period_s])


def _per_minute(amount: int) -> Rate:
    return Rate(amount, period_s=60, burst=amount)


class Buckets:
    """Redis's buckets while Redis answers, otherwise this process's own: an outage of Redis fails no request."""

    def __init__(self, redis_url: str | None = None) -> None:
        self._local = LocalBuckets()
        self._redis: RedisBuckets | None = None
        if redis_url is not None:
            from vectord.server.admission.redis_buckets import RedisBuckets  # noqa: PLC0415 - an extra: 0.2 s

            self._redis = RedisBuckets(redis_url, self._local.draw)
        self._breaker = Breaker("the rate limits' Redis", _log)

    async def draw(self, draws: Sequence[Draw]) -> Refusal | None:
        if self._redis is not None and self._breaker.lets_pass():
            try:
                refusal = await self._redis.draw(draws)
            except Exception as problem:  # any failure of Redis is an outage, not an error of the client
                self._breaker.failed(problem)
            else:
                self._breaker.worked()
                return refusal
        return self._local.draw(draws)

    async def spend(self, rate: Rate, bucket: str, amount: int) -> None:
        if self._redis is None or self._breaker.is_open:
            self._local.draw([Draw(with_debt(rate), bucket, amount)])
        else:
            self._redis.spend(rate, bucket, amount)

    async def close(self) -> None:
        if self._redis is not None:
            await self._redis.close()
