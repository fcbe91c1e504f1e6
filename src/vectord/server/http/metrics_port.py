"""Serves /metrics on a separate port, with `--prometheus-port`.

compose.py opens and closes it in the app's lifespan, on the engine's event loop. It has the page, the address, the
certificate and the checks of slow clients of the main port, and needs no key.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from vectord.config import ServerConfig
from vectord.engine.client import EngineClient
from vectord.products.common.errors import render_any
from vectord.server.admission.gate import Gate
from vectord.server.http.app import MetricsSource, metrics_page
from vectord.server.http.handler import HttpHandler
from vectord.server.http.hardening.write_backpressure import WriteBackpressure
from vectord.server.http.listener import bind, certificate_of, url_of
from vectord.server.http.routing import Table
from vectord.server.http.run import WatchingServer, uvicorn_config
from vectord.server.pipeline import RequestPipeline, Shutdown

SHUTDOWN_TIMEOUT_S = 1

_log = logging.getLogger("vectord.server")


@asynccontextmanager
async def serve_metrics(
    engine: EngineClient, metrics: MetricsSource, config: ServerConfig, shutdown: Shutdown
) -> AsyncIterator[int]:
    """Serves at `config.host` and `config.prometheus_port` during the block; yields the port, any free one for 0.

    Raises ConfigError if the port cannot be bound.
    """
    assert config.prometheus_port is not None, "called only if the port is configured"
    certificate = certificate_of(config)
    listener = bind(config.host, config.prometheus_port, option="--prometheus-port")
    backpressure = WriteBackpressure(config.payload_limit)
    table = Table((), [metrics_page(metrics)], render_any)
    handler = HttpHandler(engine, table, config, RequestPipeline(Gate(ServerConfig()), shutdown), backpressure)
    settings = uvicorn_config(handler, config, certificate, "off")
    settings.timeout_graceful_shutdown = SHUTDOWN_TIMEOUT_S
    server = MetricsServer(settings, backpressure)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    _log.info("listening", extra={"fields": {"url": url_of(listener, "https" if certificate else "http") + "/metrics"}})
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await serving


class MetricsServer(WatchingServer):
    """Leaves the process's signals to run.py."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
