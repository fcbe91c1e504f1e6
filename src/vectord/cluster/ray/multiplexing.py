"""Several models, a few of them in a replica's memory at a time, and Ray told which: it then routes by them.

A client names the model for Ray in the header serve_multiplexed_model_id, beside the field of its dialect. vectord's
own lifecycle loads it with its first use; here Ray is told that it is there, and the one that was used longest ago is
unloaded when there are too many. A header alone loads nothing. Runs on the replica's event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from ray import serve
from starlette.types import ASGIApp, Receive, Scope, Send

from vectord.engine.engine import Engine
from vectord.errors import VectordError
from vectord.schema import Caller, UnloadModel

HEADERS = frozenset({b"serve_multiplexed_model_id", b"serve-multiplexed-model-id"})
CALLER = Caller(client="cluster", route="multiplexing")


class Multiplexing:
    """An ASGI app around another. Its lifespan is the other's."""

    def __init__(self, app: ASGIApp, engine: Engine, models_at_once: int) -> None:
        self._app = app
        self._engine = engine

        async def hold(name: str) -> SimpleNamespace:  # a function: Ray keeps what it knows as an attribute of it
            return self._held(name)

        self._hold: Callable[[str], Awaitable[Any]] = serve.multiplexed(max_num_models_per_replica=models_at_once)(hold)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)
        if scope["type"] == "http" and (name := _named(scope)) is not None:
            await self.used(name)

    async def used(self, name: str) -> None:
        """A request for `name` was answered, or refused: what counts is whether it is in memory."""
        if self._engine.readiness().get(name) == "ready":
            await self._hold(name)

    def _held(self, name: str) -> SimpleNamespace:
        async def unload() -> None:
            with suppress(VectordError):  # somebody uses it just now; the next to come will take its place
                await self._engine.answer(UnloadModel(model=name), CALLER)

        return SimpleNamespace(__del__=unload)  # Ray calls it when it lets go


def _named(scope: Scope) -> str | None:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name.lower() in HEADERS), None)
