"""Who asks too often. gate.py calls this before a request's key is judged and its body read, on the event loop.

    every route         an address's requests, where --rate-limit-requests-per-minute says so
    a dialect's routes  an address's or a key's requests, as that product has it (`Dialect.rate`)
    a key               its own requests and tokens, as its file says (keys.py)

Tokens are known when they have run: a request is never cut off for them, but the next one waits until what its key
owes has been made up for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from vectord.config import ServerConfig
from vectord.errors import RateLimited
from vectord.products.common.dialect import Dialect, Rate
from vectord.schema import Result, Usage
from vectord.server.admission.buckets import Buckets, Draw, Refusal
from vectord.server.admission.keys import Key

PERIODS = {1: "second", 60: "minute"}
BURST = 120  # requests at once, of an address that has been quiet; Smart Embedder's default


class TokenBuckets(Protocol):
    """buckets.py's Buckets, or those that another process keeps (remote/limits.py)."""

    def open(self) -> None: ...
    async def draw(self, draws: Sequence[Draw]) -> Refusal | None: ...
    async def spend(self, rate: Rate, bucket: str, amount: int) -> None: ...
    async def close(self) -> None: ...


class RateLimits:
    """One a process: HTTP and gRPC draw on the same buckets."""

    def __init__(self, config: ServerConfig, dialects: Sequence[Dialect], buckets: TokenBuckets | None = None) -> None:
        """buckets: None makes them as `config` says."""
        self._everywhere, self._of_dialects = _rates(config, dialects)
        self._has_quotas = config.api_keys_file is not None  # any key may get one while the server runs
        self._buckets: TokenBuckets = buckets or Buckets(config.redis_url)

    def open(self) -> None:
        """At the start of the server, on its loop: where something is limited, the first request shall not wait for
        what that needs."""
        if self._everywhere is not None or self._of_dialects or self._has_quotas:
            self._buckets.open()

    async def check(self, address: str, key: Key | None, dialect: str | None) -> None:
        """A request that nothing has been read of. dialect: the one that will answer, None if that is not known yet.

        Raises RateLimited.
        """
        draws = [] if self._everywhere is None else [Draw(self._everywhere, f"address:{address}")]
        if dialect is not None:
            draws += self._of_dialect(address, key, dialect)
        if key is not None:
            draws += _quotas(key)
        await self._draw(draws)

    async def check_dialect(self, address: str, key: Key | None, dialect: str) -> None:
        """The rest of `check`, once a shared path's dialect is known. Raises RateLimited."""
        await self._draw(self._of_dialect(address, key, dialect))

    async def spend(self, key: Key | None, result: Result) -> None:
        """What an answer to this key has cost is taken from its tokens."""
        usage = getattr(result, "usage", None)
        if key is not None and key.tokens_per_minute is not None and isinstance(usage, Usage) and usage.tokens:
            await self._buckets.spend(_a_minute(key.tokens_per_minute), f"key:{key.name}:tokens", usage.tokens)

    async def aclose(self) -> None:
        await self._buckets.close()

    def _of_dialect(self, address: str, key: Key | None, dialect: str) -> Sequence[Draw]:
        rate = self._of_dialects.get(dialect)
        if rate is None:
            return ()
        owner = f"key:{key.name}" if key is not None and rate.per_key else f"address:{address}"
        return (Draw(rate, f"{dialect}:{owner}"),)

    async def _draw(self, draws: Sequence[Draw]) -> None:
        if not draws:
            return
        refusal = await self._buckets.draw(draws)
        if refusal is not None:
            raise RateLimited(_words(draws[refusal.place]), retry_after_s=refusal.wait_s)


def _quotas(key: Key) -> Iterator[Draw]:
    if key.tokens_per_minute is not None:
        yield Draw(_a_minute(key.tokens_per_minute), f"key:{key.name}:tokens", 0)
    if key.requests_per_minute is not None:
        yield Draw(_a_minute(key.requests_per_minute), f"key:{key.name}:requests")


def _words(refused: Draw) -> str:
    rate = refused.rate
    if refused.amount == 0:
        return f"Token quota exceeded. Max {rate.amount} tokens per minute."
    return f"Rate limit exceeded. Max {rate.amount} requests per {PERIODS[rate.period_s]}."


def _rates(config: ServerConfig, dialects: Sequence[Dialect]) -> tuple[Rate | None, dict[str, Rate]]:
    """(each address's on every route, each dialect's on its own). The settings speak of addresses."""
    amount, burst = config.rate_limit_requests_per_minute, config.rate_limit_burst_size
    if amount == 0:
        return None, {}
    rates = {dialect.name: dialect.rate for dialect in dialects if dialect.rate is not None}
    per_key = {name: rate for name, rate in rates.items() if rate.per_key}
    if amount is not None:
        return Rate(amount, period_s=60, burst=burst or BURST), per_key
    if burst is not None:
        rates = {name: replace(rate, burst=burst) for name, rate in rates.items()} | per_key
    return None, rates


def _a_minute(amount: int) -> Rate:
    return Rate(amount, period_s=60, burst=amount)
