"""What the server asks of whatever counts HTTP: this process's metrics, or those of the engine's process.

The metrics of this process answer at once, those of cluster/remote/client.py when the engine's process has replied.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol, TypeVar

from vectord.observability.exchange import Exchange

T = TypeVar("T")
U = TypeVar("U")


class Meter(Protocol):
    def expect_routes(self, routes: Iterable[tuple[str, str]]) -> None: ...

    def observe(self, exchange: Exchange) -> None: ...

    def exposition(self, accept: str = "") -> tuple[bytes, str] | Awaitable[tuple[bytes, str]]: ...

    def live(self) -> dict[str, Any] | Awaitable[dict[str, Any] | None] | None: ...


def then(value: T | Awaitable[T], use: Callable[[T], U]) -> U | Awaitable[U]:
    """What `use` makes of the value, at once or once it is there."""
    if not isinstance(value, Awaitable):
        return use(value)
    return _then(value, use)


async def _then(value: Awaitable[T], use: Callable[[T], U]) -> U:
    return use(await value)
