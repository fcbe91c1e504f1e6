"""Bytes in Redis, for the cache that replicas share. compose.py makes it; engine/shared_cache.py calls it.

How long to wait, when to try again and whether to trust what comes: all that is the caller's. Importing redis takes
0.4 s, so it happens in a thread, in `open`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

CONNECTIONS = 72  # as many as look-ups at once, and some for writing and those that end


class RedisStore:
    """Implements Store. redis-py's own retries are off: whoever waits has something better to do."""

    def __init__(self, url: str, ttl_s: int) -> None:
        """ttl_s: seconds until what was written is gone."""
        self._url = url
        self._ttl_s = ttl_s
        self._client: Any = None

    async def open(self) -> None:
        await asyncio.to_thread(import_module, "redis.asyncio")
        from redis.asyncio import Redis  # noqa: PLC0415 - an extra
        from redis.asyncio.retry import Retry  # noqa: PLC0415
        from redis.backoff import NoBackoff  # noqa: PLC0415

        self._client = Redis.from_url(self._url, max_connections=CONNECTIONS, retry=Retry(NoBackoff(), 0))

    async def read(self, names: Sequence[bytes]) -> Sequence[object]:
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
