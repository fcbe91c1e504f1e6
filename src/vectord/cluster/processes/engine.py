"""The process that has the models: `python -m vectord.cluster.processes.engine`, started by supervisor.py.

Front-ends connect to its Unix socket. gRPC has its port here. On SIGTERM it refuses new requests and drains.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from contextlib import suppress

import uvloop
from starlette.applications import Starlette

from vectord import compose
from vectord.cluster.processes.start import (
    StartMessage,
    on_signals,
    on_supervisor_end,
    read_start_message,
    run_and_exit,
)
from vectord.cluster.remote.server import EngineServer
from vectord.compute.processor import prepare_process
from vectord.observability import logs
from vectord.server.http.listener import check_server

_log = logging.getLogger("vectord")


def main() -> int:
    """The exit code: 0, or 1 if no model could be loaded."""
    start = read_start_message()
    logs.configure(start.config.telemetry, process=start.name)
    check_server(start.config.server)
    prepare_process()
    composed = compose.build(start.config, close_timeout_s=compose.EXIT_CLOSE_TIMEOUT_S)
    composed.app.state.url = start.url
    gc.freeze()  # as in compose.serve
    uvloop.run(_serve(composed, start))
    return compose.exit_code(composed.engine)


async def _serve(composed: compose.Composition, start: StartMessage) -> None:
    app, engine = composed.app, composed.engine
    timeout_s = start.config.server.shutdown_timeout_secs
    server = EngineServer(engine, composed.buckets, composed.metrics)
    abandoned = asyncio.Event()
    on_supervisor_end(abandoned.set)
    ended = asyncio.Event()  # by a signal, or because no model could be loaded
    app.state.shutdown.on_begin(ended.set)
    # On SIGTERM to all processes, the front-ends still drain: the engine ends after them.
    on_signals(abandoned.set, app.state.pipeline.reload.begin)
    async with app.router.lifespan_context(app):
        await server.start(socket.socket(fileno=start.listener))
        ending = asyncio.create_task(_end_after_front_ends(abandoned, server, app, timeout_s))
        await ended.wait()
        _log.info("draining")
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await engine.drain()
                await server.close()
        server.abort()
        ending.cancel()
    _log.info("stopped")


async def _end_after_front_ends(
    abandoned: asyncio.Event, server: EngineServer, app: Starlette, timeout_s: float
) -> None:
    await abandoned.wait()
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await server.wait_until_unused()
    app.state.shutdown.begin()


if __name__ == "__main__":
    run_and_exit(main)
