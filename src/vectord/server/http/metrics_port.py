"""/metrics on a separate port, if PROMETHEUS_PORT is set.

Opened and closed by compose, in the app's lifespan, on the engine's event loop. The same page with the same rules as at
the server's own port: its address, its certificate, no key, the same watch over slow clients.
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
from vectord.server.http.app import metrics_page
from vectord.server.http.handler import Handler
from vectord.server.http.hardening.unsent import Unsent
from vectord.server.http.meter import Meter
from vectord.server.http.routing import Table
from vectord.server.http.run import bind, url_of, uvicorn_config
from vectord.server.http.shutdown import Shutdown
from vectord.server.http.tls import certificate_of
from vectord.server.http.watching import WatchingServer

OPTION = "--prometheus-port"
LAST_WORDS_S = 1  # for a page that is being sent when the server ends

_log = logging.getLogger("vectord.server")


@asynccontextmanager
async def serve_metrics(
    engine: EngineClient, metrics: Meter, config: ServerConfig, shutdown: Shutdown
) -> AsyncIterator[int]:
    """Answers at `config.host` and `config.prometheus_port` while the block runs; gives the port, any free one for 0.

    Raises ConfigError if the port cannot be bound.
    """
    assert config.prometheus_port is not None, "whoever wants no port does not call this"
    certificate = certificate_of(config)
    listener = bind(config.host, config.prometheus_port, option=OPTION)
    unsent = Unsent(config.payload_limit)
    table = Table((), [metrics_page(metrics)], render_any)
    settings = uvicorn_config(
        Handler(engine, table, config, Gate(ServerConfig()), shutdown, unsent=unsent), config, certificate, "off"
    )
    settings.timeout_graceful_shutdown = LAST_WORDS_S
    server = MetricsServer(settings, unsent)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    _log.info("listening", extra={"fields": {"url": url_of(listener, "https" if certificate else "http") + "/metrics"}})
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await serving


class MetricsServer(WatchingServer):
    """Without uvicorn's signals, which are run.py's."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
