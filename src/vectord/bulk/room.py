"""How much may be under way at once, in rows, characters and bytes. Lives on the event loop."""

from __future__ import annotations

import asyncio

from vectord.bulk.rows import Rows
from vectord.bulk.text_rows import Limits


class Room:
    """One takes, one gives. What is larger than the whole room goes in alone."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._rows = self._characters = self._size_bytes = 0
        self._given = asyncio.Event()

    async def take(self, rows: Rows) -> None:
        """Returns when there is room for them, too."""
        while self._rows and not self._fits(rows):
            self._given.clear()
            await self._given.wait()
        self._add(rows, 1)

    def give(self, rows: Rows) -> None:
        self._add(rows, -1)
        self._given.set()

    def _fits(self, rows: Rows) -> bool:
        return (
            self._rows + len(rows) <= self._limits.rows
            and self._characters + rows.characters <= self._limits.characters
            and self._size_bytes + rows.size_bytes <= self._limits.size_bytes
        )

    def _add(self, rows: Rows, sign: int) -> None:
        self._rows += sign * len(rows)
        self._characters += sign * rows.characters
        self._size_bytes += sign * rows.size_bytes
