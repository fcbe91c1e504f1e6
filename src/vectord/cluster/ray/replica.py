"""One replica: the whole app, with its own engine, in an actor of Ray. Made by application.py.

Ray calls its methods on the event loop of the app.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.types import ASGIApp

from vectord import compose
from vectord.cluster.ray.scaling import BUSY, WAITING_TOKENS
from vectord.config import Config
from vectord.engine.events import BatchRan, Event, Observer
from vectord.observability import logs
from vectord.observability.instruments import BusyShare
from vectord.products.common.models import ready_models


class NotReady(Exception):
    """No model is ready. Ray replaces such a replica."""


class Replica:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._busy = BusyShare()
        self._composed: compose.Composition

    def __serve_build_asgi_app__(self) -> ASGIApp:  # called by Ray
        logs.configure(self._config.telemetry)
        compose.run_without_preempting()
        self._composed = compose.build(self._config, self._watching)
        app = self._composed.app
        _wait_for_models(app, self._composed)
        return app

    def _watching(self, then: Observer) -> Observer:
        def observe(event: Event) -> None:
            if isinstance(event, BatchRan):
                self._busy.add(event.seconds / event.streams)
            then(event)

        return observe

    async def check_health(self) -> None:
        """Raises NotReady. Called by Ray, as the next method."""
        if not ready_models(self._composed.engine.models()):
            raise NotReady(f"no model is ready: {self._composed.engine.readiness()}")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        queued = self._composed.engine.gauges().queued_tokens
        return {WAITING_TOKENS: float(sum(queued.values())), BUSY: self._busy.share()}


def _wait_for_models(app: Starlette, composed: compose.Composition) -> None:
    """Delay the start of the app until its models have loaded: Ray sends requests from then on."""
    start = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with start(app):
            await composed.engine.loaded.wait()
            if compose.exit_code(composed.engine):
                raise NotReady("no model could be loaded; see the replica's log")
            yield
            app.state.shutdown.begin()
            await composed.engine.drain()

    app.router.lifespan_context = lifespan
