"""Who counts what an engine does: its own process, or, of several engines, that of the first. Made by engine.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from vectord import compose
from vectord.cluster.remote.link import Link
from vectord.cluster.remote.reporter import Reporter
from vectord.cluster.remote.reports import Reports
from vectord.engine.observer import Observer


class Counting:
    """This process, for itself and for those that tell it."""

    def __init__(self) -> None:
        self.reports = Reports()

    def over(self, metrics: Observer) -> Observer:
        """What the engine tells."""
        return self.reports.over(metrics)

    @asynccontextmanager
    async def running(self, composed: compose.Composition) -> AsyncIterator[None]:
        engine, reports = composed.engine, self.reports
        if composed.metrics is not None:
            composed.metrics.watch(
                lambda: reports.gauges(engine.gauges()), lambda: reports.models(engine.models().models)
            )
        yield


class Telling:
    """Another process, which is told."""

    def __init__(self, path: Path) -> None:
        """path: of its socket."""
        self.reports = None
        self._link = Link(path)
        self._reporter = Reporter(self._link)

    def over(self, metrics: Observer) -> Observer:
        """What the engine tells; nobody here has any use for `metrics`."""
        return self._reporter

    @asynccontextmanager
    async def running(self, composed: compose.Composition) -> AsyncIterator[None]:
        engine = composed.engine
        connecting = asyncio.create_task(self._link.open())  # it may be away, and nobody here waits for it
        looking = asyncio.create_task(self._reporter.look(engine.gauges, lambda: engine.models().models))
        try:
            yield
        finally:
            for task in (connecting, looking):
                task.cancel()
            self._reporter.flush()
            await self._link.close()
