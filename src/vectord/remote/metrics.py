"""What counts HTTP in a front-end: it passes everything on to the engine's process, which alone has the figures.

The server tells it of each answer, on the event loop. Notes go in batches; those of a time without an engine are kept
for the next one, up to a limit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Any, cast

import orjson

from vectord.remote.codec import decode_value, encode_value
from vectord.remote.frames import Kind
from vectord.remote.link import Link
from vectord.remote.messages import Answered, Expose, Live, Note, Page, Rejected, Routes
from vectord.telemetry.exchange import Exchange

LATEST_S = 0.05  # after which a note is on its way
MAX_KEPT = 16_384  # the oldest are forgotten


class RemoteMetrics:
    """Implements server/meter.py's Meter."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._routes: list[tuple[str, str]] = []
        self._notes: deque[Note] = deque(maxlen=MAX_KEPT)
        self._timer: asyncio.TimerHandle | None = None
        link.on_up(self._tell_routes)

    def expect_routes(self, routes: Iterable[tuple[str, str]]) -> None:
        self._routes = list(routes)

    def http_answered(self, exchange: Exchange) -> None:
        self._add(Answered(exchange))

    def rejected(self, route: str, reason: str) -> None:
        self._add(Rejected(route, reason))

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
        """Send what is noted. Does nothing while there is no engine."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._notes and self._link.is_up:
            self._link.tell(encode_value(list(self._notes)))
            self._notes.clear()

    def _add(self, note: Note) -> None:
        self._notes.append(note)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LATEST_S, self.flush)

    def _tell_routes(self) -> None:
        self._link.tell(encode_value([Routes(self._routes)]))
        self.flush()
