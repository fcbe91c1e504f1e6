"""An Observer that tells the engine's process that counts, in one of the others. On the event loop.

What goes up and down is told once a second: that is how old a scrape's gauges may be.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence

from vectord.cluster.remote.link import Link
from vectord.cluster.remote.messages import Active, Disbelieved, Looked, LookedUp, Queued, Ran, Reported
from vectord.cluster.remote.notes import Notes
from vectord.engine.observer import BatchReport, RequestReport
from vectord.schema import Gauges, ModelInfo

LOOK_S = 1.0

_log = logging.getLogger("vectord.cluster.remote")


class Reporter:
    """Implements Observer."""

    def __init__(self, link: Link) -> None:
        self._notes = Notes(link)
        self._active: Counter[str] = Counter()
        self._queued = (0, 0)

    def flush(self) -> None:
        self._notes.flush()

    async def look(self, gauges: Callable[[], Gauges], models: Callable[[], Sequence[ModelInfo]]) -> None:
        """Again and again, until cancelled."""
        while True:
            self._notes.add(Active(dict(self._active)))
            self._notes.add(Queued(*self._queued))
            try:
                self._notes.add(Looked(gauges(), list(models())))
            except Exception:  # a device that is lost may say so in any way
                _log.exception("what this engine is like cannot be told")
            await asyncio.sleep(LOOK_S)

    def request_began(self, operation: str) -> None:
        self._active[operation] += 1

    def request_ended(self, operation: str) -> None:
        self._active[operation] -= 1

    def request_answered(self, report: RequestReport) -> None:
        self._notes.add(Reported(report))

    def batch_ran(self, report: BatchReport) -> None:
        self._notes.add(Ran(report))

    def queue_changed(self, texts: int, tokens: int) -> None:
        self._queued = texts, tokens

    def cache_looked_up(self, model: str, hits: int, misses: int) -> None:
        self._notes.add(LookedUp(model, hits, misses, shared=False))

    def shared_cache_looked_up(self, model: str, hits: int, misses: int) -> None:
        self._notes.add(LookedUp(model, hits, misses, shared=True))

    def shared_cache_refused(self, model: str, values: int) -> None:
        self._notes.add(Disbelieved(model, values))

    def model_changed(self, model: str, state: str, load_seconds: float | None) -> None:
        """Not told: /metrics has states and load times of the process that counts, and each device's beside them."""
