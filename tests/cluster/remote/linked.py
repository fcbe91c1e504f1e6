"""An engine with a real socket, and front-ends connected to it, on the event loop of the test."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.server.fakes import MODEL, FakeEngine

from vectord.cluster.remote.client import RemoteEngine
from vectord.cluster.remote.link import Link, first_state
from vectord.cluster.remote.server import EngineServer
from vectord.engine.client import EngineClient
from vectord.observability.metrics import Metrics
from vectord.server.admission.rate_limit import Buckets

NAMES = {MODEL: MODEL, "alias": MODEL}


@dataclass
class Linked:
    """The socket and the engine's side of it."""

    path: Path
    listener: socket.socket
    engine: EngineClient
    server: EngineServer
    metrics: Metrics

    async def replace(self, engine: EngineClient) -> None:
        """Simulates the replacement of the engine's process."""
        self.server.abort()
        await self.server.close()
        self.engine, self.server = engine, await serving(engine, self.listener, self.metrics, NAMES)


async def serving(
    engine: EngineClient, listener: socket.socket, metrics: Metrics, names: Mapping[str, str]
) -> EngineServer:
    server = EngineServer(engine, lambda: names, Buckets(), metrics)
    await server.start(listener.dup())
    return server


@asynccontextmanager
async def linked(engine: EngineClient | None = None, metrics: Metrics | None = None) -> AsyncIterator[Linked]:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        path = Path(folder) / "engine"  # pytest's own folders have names that are too long for a socket
        listener.bind(str(path))
        listener.listen()
        chosen, metrics = engine or FakeEngine(), metrics or Metrics("1")
        found = Linked(path, listener, chosen, await serving(chosen, listener, metrics, NAMES), metrics)
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
async def remote(engine: EngineClient | None = None) -> AsyncIterator[tuple[RemoteEngine, Linked]]:
    async with linked(engine) as found, front_end(found) as link:
        yield RemoteEngine(link), found
