"""The process that has the models: `python -m vectord.cluster.processes.engine`, started by supervisor.py.

The server as it is in one process, but that nobody speaks HTTP to it: the front-ends come by its socket, gRPC has its
port here.
On SIGTERM new requests are refused and what was accepted is answered; without a parent, first the front-ends finish,
which then end as well.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from contextlib import suppress
from types import FrameType

import uvloop
from starlette.applications import Starlette

from vectord import compose
from vectord.cluster.processes.announcing import Announcing
from vectord.cluster.processes.orders import Orders, end, read_orders, when_alone
from vectord.cluster.remote.server import EngineServer
from vectord.observability import logs

_log = logging.getLogger("vectord")


def main() -> int:
    """The exit code: 0, or 1 if no model could be loaded. Raises StartError."""
    orders = read_orders()
    config = orders.config
    logs.configure(config.telemetry, process=orders.name)
    compose.check_server(config.server)
    compose.run_without_preempting()
    announcing = Announcing()
    composed = compose.build(config, announcing.over)
    uvloop.run(_serve(composed, announcing, orders, socket.socket(fileno=orders.listener)))
    return compose.exit_code(composed.engine)


async def _serve(
    composed: compose.Composition, announcing: Announcing, orders: Orders, listener: socket.socket
) -> None:
    app, engine = composed.app, composed.engine
    timeout_s = orders.config.server.shutdown_timeout_secs
    server = EngineServer(engine, engine.names, composed.buckets, composed.metrics)
    announcing.announce = server.announce
    alone = asyncio.Event()
    when_alone(alone.set)
    ended = _ended(app)
    async with app.router.lifespan_context(app):
        await server.start(listener)
        loaded = asyncio.create_task(_announce_when_loaded(composed, server))
        leaving = asyncio.create_task(_when_alone(alone, server, app, timeout_s))
        await ended.wait()
        _log.info("draining")
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await engine.drain()
                await server.close()
        server.abort()
        for task in (loaded, leaving):
            task.cancel()
    _log.info("stopped")


async def _announce_when_loaded(composed: compose.Composition, server: EngineServer) -> None:
    await composed.engine.loaded.wait()
    server.announce()


async def _when_alone(alone: asyncio.Event, server: EngineServer, app: Starlette, timeout_s: float) -> None:
    await alone.wait()
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await server.gone()
    app.state.shutdown.begin()


def _ended(app: Starlette) -> asyncio.Event:
    """Set by the first signal, or by an engine that could load nothing; a second signal ends the process at once."""
    ended = asyncio.Event()
    app.state.shutdown.on_begin(ended.set)
    loop = asyncio.get_running_loop()

    def leave(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)
        loop.call_soon_threadsafe(app.state.shutdown.begin)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)
    return ended


if __name__ == "__main__":
    end(main)
