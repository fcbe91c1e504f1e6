"""The app for another ASGI server, such as `uvicorn vectord.asgi:app --http h11`; configured by environment and files.
uvicorn's other parser, httptools, takes the body of a request that offers an upgrade for the next request; the app then
closes the connection, so that none follows.

Importing this has no side effects. The app is built at the lifespan's startup, or at the first request if the server
has no lifespan. Runs on that server's event loop, once per worker.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from vectord.config.sources import CommandLine, load
from vectord.errors import StartError
from vectord.products.common.profiles import profiles

# ASGI's types. Not imported from starlette: importing this file must stay cheap.
Scope = Any
Receive = Any
Send = Any


class LazyApp:
    """An ASGI application that becomes vectord when it is started."""

    def __init__(self) -> None:
        self._app: Any = None
        self._starting: asyncio.Lock | None = None
        self._running = AsyncExitStack()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            try:
                self._app = _build()
            except StartError as problem:  # one line, no traceback
                await receive()
                await send({"type": "lifespan.startup.failed", "message": f"vectord: {problem.message}"})
                return
        elif self._app is None:  # the server has no lifespan
            self._starting = self._starting or asyncio.Lock()
            async with self._starting:
                if self._app is None:
                    built = _build()
                    await self._running.enter_async_context(built.router.lifespan_context(built))
                    self._app = built
        await self._app(scope, receive, send)


def _build() -> Any:
    """Blocks for a few tenths of a second, before the first request is served."""
    from vectord import compose  # noqa: PLC0415 - importing this module must stay cheap
    from vectord.observability import logs  # noqa: PLC0415

    loaded = load(CommandLine(), os.environ, Path.cwd(), profiles())
    logs.configure(loaded.config.telemetry)
    loaded.log_notes()
    loaded.check_keys()
    return compose.build(loaded.config).app


app = LazyApp()
