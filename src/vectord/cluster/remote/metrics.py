"""What counts HTTP in a front-end: it passes everything on to the engine's process, which alone has the figures.

The server tells it of each answer, on the event loop. Notes of a time without an engine are kept for the next one.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, cast

import orjson

from vectord.cluster.remote.codec import decode_value, encode_value
from vectord.cluster.remote.frames import Kind
from vectord.cluster.remote.link import Link
from vectord.cluster.remote.messages import Expose, Live, Page, Routes
from vectord.cluster.remote.notes import Notes
from vectord.observability.exchange import Exchange


class RemoteMetrics:
    """Implements server/meter.py's Meter."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._routes: list[tuple[str, str]] = []
        self._notes = Notes(link)
        link.on_up(self._tell_routes)

    def expect_routes(self, routes: Iterable[tuple[str, str]]) -> None:
        self._routes = list(routes)

    def observe(self, exchange: Exchange) -> None:
        self._notes.add(exchange)

    async def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """Of all front-ends and the engine, this one's latest notes among them."""
        self.flush()
        page = cast(Page, await self._link.ask(Kind.CALL, encode_value(Expose(accept)), partial(decode_value, Page)))
        return page.body, page.content_type

    async def live(self) -> dict[str, Any] | None:
        self.flush()
        found = await self._link.ask(Kind.CALL, encode_value(Live()), partial(decode_value, bytes | None))
        return None if found is None else cast(dict[str, Any], orjson.loads(found))

    def flush(self) -> None:
        self._notes.flush()

    def _tell_routes(self) -> None:
        self._link.tell(encode_value([Routes(self._routes)]))
        self.flush()
