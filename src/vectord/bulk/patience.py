"""Asking again where the model cannot answer now. Lives on the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from vectord.bulk.failures import BulkFailed, Later
from vectord.bulk.progress import Progress

T = TypeVar("T")

FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 15.0  # doubled from the one to the other, where nobody says how long


class Patience:
    """Of all requests of a job together: as long as one of them is answered now and then, the others wait."""

    def __init__(self, patience_s: float, progress: Progress) -> None:
        self._patience_s = patience_s
        self._progress = progress
        self._answered_s = time.monotonic()

    async def ask(self, call: Callable[[], Awaitable[T]]) -> T:
        """What `call` gives, called until it does. Raises BulkFailed where nothing was answered for patience_s."""
        wait_s = FIRST_WAIT_S
        while True:
            try:
                found = await call()
            except Later as later:
                if time.monotonic() - self._answered_s > self._patience_s:
                    raise BulkFailed(f"Nothing was answered for {self._patience_s:g} s: {later}") from later
                with self._progress.waiting(str(later)):
                    await asyncio.sleep(min(later.retry_after_s or wait_s, LONGEST_WAIT_S))
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
            else:
                self._answered_s = time.monotonic()
                return found
