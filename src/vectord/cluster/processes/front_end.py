"""A process that reads and writes HTTP: `python -m vectord.cluster.processes.front_end`, started by supervisor.py.

It waits for the engine's process and then serves on a port that it inherits: the first free front-end accepts the next
connection. When the supervisor ends, it drains and ends too.
"""

from __future__ import annotations

import gc
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette

from vectord import __version__
from vectord.cluster.processes.start import on_supervisor_end, read_start_message, run_and_exit
from vectord.cluster.processes.tokenizers import Tokenizers
from vectord.cluster.remote.client import RemoteBuckets, RemoteEngine, RemoteMetrics
from vectord.cluster.remote.link import Link, first_state
from vectord.compute.memory import limit_freed_memory
from vectord.compute.processor import lower_other_threads
from vectord.config import Config
from vectord.observability import logs
from vectord.observability.tracing import open_tracing
from vectord.products.common.dialect import load_dialects
from vectord.server.admission.gate import Gate
from vectord.server.http import run
from vectord.server.http.app import create_app
from vectord.server.pipeline import Shutdown


def main() -> int:
    limit_freed_memory()
    start = read_start_message()
    logs.configure(start.config.telemetry, process=start.name)
    path = Path(start.engine_socket)
    app = build(start.config, Link(path, first_state(path)))
    gc.freeze()  # as in compose.serve
    listener = socket.socket(fileno=start.listener)
    run.serve(app, start.config.server, listener=listener, every_second=lower_other_threads, supervised=True)
    return 0


def build(config: Config, link: Link) -> Starlette:
    """The app of this process. Its lifespan opens and closes `link`."""
    dialects = load_dialects(config.server.dialects)
    gate = Gate(config.server, dialects, RemoteBuckets(link))
    metrics = RemoteMetrics(link) if config.telemetry.enable_metrics else None
    tracing = open_tracing(config.telemetry, __version__)
    tokenizers = Tokenizers(config)

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        shutdown: Shutdown = app.state.shutdown
        shutdown.on_begin(link.give_up)
        on_supervisor_end(shutdown.begin)
        await link.open()
        try:
            yield
        finally:
            await link.close()
            tokenizers.close()
            if tracing is not None:
                await tracing.close(config.server.shutdown_timeout_secs)

    engine = RemoteEngine(link, config.engine.request_timeout_s, tokenizers)
    app = create_app(engine, dialects, config.server, metrics, lifespan, gate, tracing)
    return app


if __name__ == "__main__":
    run_and_exit(main)
