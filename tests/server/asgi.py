"""Calls an ASGI app without a socket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from tests.server.live import Reply


async def call(
    app: Any,
    method: str,
    path: str,
    body: bytes = b"",
    *,
    headers: Mapping[str, str] | None = None,
    parts: Sequence[bytes] | None = None,
    receive: Callable[[], Awaitable[dict[str, Any]]] | None = None,
    **scope: Any,
) -> Reply:
    """The app's response. parts: pieces of the body instead of `body`. receive: instead of both."""
    sent: list[dict[str, Any]] = []
    content = [body] if parts is None else list(parts)
    given = {"content-length": str(len(body)), **(headers or {})} if body else dict(headers or {})
    messages = iter(
        {"type": "http.request", "body": part, "more_body": index < len(content) - 1}
        for index, part in enumerate(content)
    )

    async def receive_parts() -> dict[str, Any]:
        return next(messages, {"type": "http.disconnect"})

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in given.items()]
    request = {"type": "http", "method": method, "path": path, "headers": encoded, "query_string": b"", "root_path": ""}
    await app({**request, "client": ("10.0.0.1", 1), **scope}, receive or receive_parts, send)
    start = sent[0]
    shown = {name.decode(): value.decode() for name, value in start["headers"]}
    return Reply(start["status"], shown, b"".join(message.get("body", b"") for message in sent[1:]))
