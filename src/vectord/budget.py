"""A limit of what concurrent work holds together, mostly bytes: bodies, responses, rows in flight.

The owner of the limit decides what happens beyond it: `hold` lets it refuse, `wait` lets it wait.
"""

from __future__ import annotations

import asyncio
import threading


class Budget:
    """Amounts held together, at most `limit`. A larger amount fits if nothing else is held.

    overshoots: the amount that reaches the limit may exceed it, so a large one waits no longer than others.
    `wait` needs the event loop, as does `release` while something waits; all else may be called on any thread.
    """

    def __init__(self, limit: int, *, overshoots: bool = False) -> None:
        self.limit = limit
        self.held = 0
        self._overshoots = overshoots
        self._lock = threading.Lock()
        self._released = asyncio.Event()
        self._turns = asyncio.Lock()  # of those that wait

    def fits(self, amount: int) -> bool:
        return not self.held or (self.held < self.limit if self._overshoots else self.held + amount <= self.limit)

    def hold(self, amount: int) -> bool:
        """Whether the amount fits; if so, it is held until `release`."""
        with self._lock:
            fits = self.fits(amount)
            if fits:
                self.held += amount
        return fits

    def add(self, amount: int) -> None:
        """Hold what exists already, even beyond the limit."""
        with self._lock:
            self.held += amount

    async def wait(self, amount: int) -> None:
        """Hold the amount once it fits: first come, first served."""
        async with self._turns:
            while not self.hold(amount):
                self._released.clear()
                await self._released.wait()

    def release(self, amount: int) -> None:
        with self._lock:
            self.held -= amount
        self._released.set()
