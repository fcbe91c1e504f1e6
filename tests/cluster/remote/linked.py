"""An engine with a real socket, and front-ends connected to it, on the event loop of the test."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.server.fakes import FakeEngine

from vectord.cluster.remote.client import RemoteEngine
from vectord.cluster.remote.link import Link, first_state
from vectord.cluster.remote.server import EngineServer
from vectord.engine.engine import Engine
from vectord.observability.metrics import Metrics
from vectord.server.admission.rate_limit import Buckets


@dataclass
class Linked:
    """The socket and the engine's side of it."""

    path: Path
    listener: socket.socket
    engine: FakeEngine | Engine
    server: EngineServer
    metrics: Metrics

    async def replace(self, engine: FakeEngine | Engine) -> None:
        """Simulates the replacement of the engine's process."""
        self.server.abort()
        await self.server.close()
        self.engine, self.server = engine, await serving(engine, self.listener, self.metrics)


async def serving(engine: FakeEngine | Engine, listener: socket.socket, metrics: Metrics) -> EngineServer:
    server = EngineServer(engine, Buckets(), metrics)
    await server.start(listener.dup())
    return server


@asynccontextmanager
async def linked(engine: FakeEngine | Engine | None = None, metrics: Metrics | None = None) -> AsyncIterator[Linked]:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        path = Path(folder) / "engine"  # pytest's own folders have names that are too long for a socket
        listener.bind(str(path))
        listener.listen()
        chosen, metrics = engine or FakeEngine(), metrics or Metrics("1")
        found = Linked(path, listener, chosen, await serving(chosen, listener, metrics), metrics)
        try:
            async with asyncio.timeout(20):
                yield found
        finally:
            found.server.abort()
            await found.server.close()


@asynccontextmanager
async def front_end(to: Linked) -> AsyncIterator[Link]:
    link = Link(to.path, await asyncio.to_thread(first_state, to.path))
    await link.open()
    try:
        yield link
    finally:
        await link.close()


@asynccontextmanager
async def remote(engine: FakeEngine | Engine | None = None) -> AsyncIterator[tuple[RemoteEngine, Linked]]:
    async with linked(engine) as found, front_end(found) as link:
        yield RemoteEngine(link), found
