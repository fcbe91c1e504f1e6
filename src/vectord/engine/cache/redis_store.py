"""The store in Redis for the shared cache (shared.py).

Timeouts, retries and validation belong to the caller. Importing redis takes 0.4 s, so `open` does it in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

CONNECTIONS = 72  # shared.MAX_LOOKUPS, and some for writes and cancelled look-ups


class RedisStore:
    """Bytes by name, outside this process. Its methods may raise anything, take any time, and return anything.

    redis-py's own retries are off: the caller would rather compute the answer.
    """

    def __init__(self, url: str, ttl_s: int) -> None:
        """ttl_s: seconds until a written value expires."""
        self._url = url
        self._ttl_s = ttl_s
        self._client: Any = None

    async def open(self) -> None:
        """Called once, first. Does not connect."""
        await asyncio.to_thread(import_module, "redis.asyncio")
        from redis.asyncio import Redis  # noqa: PLC0415 - an extra
        from redis.asyncio.retry import Retry  # noqa: PLC0415
        from redis.backoff import NoBackoff  # noqa: PLC0415

        self._client = Redis.from_url(self._url, max_connections=CONNECTIONS, retry=Retry(NoBackoff(), 0))

    async def read(self, names: Sequence[bytes]) -> Sequence[object]:
        """The bytes under each name, None for an unknown name."""
        found: Sequence[object] = await self._opened().mget(names)
        return found

    async def write(self, values: Mapping[bytes, bytes]) -> None:
        async with self._opened().pipeline(transaction=False) as pipeline:
            for name, value in values.items():
                pipeline.set(name, value, ex=self._ttl_s)
            await pipeline.execute()

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    def _opened(self) -> Any:
        if self._client is None:
            raise ConnectionError("not open")
        return self._client
