"""The same call by either client, for tests of both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
from tests.client.fakes import FakeServer

import vectord

URL = "http://fake"

# call(server, "embed", texts, dtype="int8", client={...}): the result. server: a fake one, or the URL of a real one.
CallOf = Callable[..., Any]


def call(server: FakeServer | str, name: str, *args: Any, client: dict[str, Any] | None = None, **options: Any) -> Any:
    """By vectord.Client. client: its settings."""
    with vectord.Client(**_settings(server), **(client or {})) as caller:
        answer = getattr(caller, name)(*args, **options)
        return list(answer) if name == "embed_iter" else answer


def call_async(
    server: FakeServer | str, name: str, *args: Any, client: dict[str, Any] | None = None, **options: Any
) -> Any:
    """By vectord.AsyncClient."""

    async def main() -> Any:
        async with vectord.AsyncClient(**_settings(server), **(client or {})) as caller:
            answer = getattr(caller, name)(*args, **options)
            return [batch async for batch in answer] if name == "embed_iter" else await answer

    return asyncio.run(main())


def _settings(server: FakeServer | str) -> dict[str, Any]:
    if isinstance(server, str):
        return {"base_url": server}
    return {"base_url": URL, "http": httpx.AsyncClient(transport=httpx.MockTransport(server))}
