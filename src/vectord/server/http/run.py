"""Serves an app in this process: one listening socket, signals, and a shutdown that answers every accepted request.

compose.py calls `serve` on the main thread; it returns when the server has drained. Order of the shutdown:

    SIGTERM, SIGINT -> no new connections; new requests on open connections get 503 and Connection: close
           -> engine.drain(): accepted requests are answered, within shutdown_timeout_secs
           -> idle connections close -> the app's lifespan closes the engine

Requests that exceed the timeout get 503. A second signal ends the process immediately; in a process of the supervisor
it has no effect, because systemd and the supervisor both send one. SIGHUP: certificates are read again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from starlette.applications import Starlette

from vectord.config import ServerConfig
from vectord.engine.client import EngineClient, new_event_loop
from vectord.observability.logs import START
from vectord.products.common.errors import render_any
from vectord.server.admission.gate import Gate
from vectord.server.http.app import MetricsSource, metrics_page
from vectord.server.http.handler import HttpHandler
from vectord.server.http.hardening.connection_limits import ConnectionLimits, configured_limits
from vectord.server.http.hardening.write_backpressure import WriteBackpressure
from vectord.server.http.listener import bind, certificate_of, url_of
from vectord.server.http.port import HttpPort
from vectord.server.http.routing import Table
from vectord.server.pipeline import Reload, RequestPipeline, Shutdown

METRICS_SHUTDOWN_S = 1.0
MAX_METRICS_CONNECTIONS = 16

_log = logging.getLogger("vectord.server")


class Server(HttpPort):
    """The server of this process: the app's port and lifespan."""

    def __init__(
        self,
        app: Starlette,
        config: ServerConfig,
        on_listening: Callable[[str], None] = lambda url: None,
        every_second: Callable[[], object] = lambda: None,
    ) -> None:
        pipeline: RequestPipeline = app.state.pipeline
        limits = configured_limits(
            config.max_connections, config.max_connections_per_address, with_grpc=config.grpc_port is not None
        )
        counted = ConnectionLimits(*limits, pipeline.gate, app.state.connection_observer)
        super().__init__(app, config, counted, app.state.backpressure, pipeline.reload, every_second)
        self.reload = pipeline.reload
        self.shutdown = pipeline.shutdown
        self._starlette = app
        self._timeout_s = config.shutdown_timeout_secs
        self._on_listening = on_listening

    async def serve(self, listener: socket.socket, url: str) -> None:
        """From the start of the lifespan until the shutdown has begun and ended."""
        loop = asyncio.get_running_loop()
        stopping = asyncio.Event()
        self.shutdown.on_begin(stopping.set)
        async with self._starlette.router.lifespan_context(self._starlette):
            self.open(listener)
            START.info("listening", extra={"fields": {"url": url}})
            self._on_listening(url)
            if not self.shutdown.begun:
                await stopping.wait()
            began_s = loop.time()
            _log.info("draining", extra={"fields": {"requests": len(self.service.tasks)}})
            draining = loop.create_task(self._starlette.state.engine.drain())
            await self.close(self._timeout_s)
            draining.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await draining
        _log.info("stopped", extra={"fields": {"seconds": round(loop.time() - began_s, 3)}})


def serve(
    app: Starlette,
    config: ServerConfig,
    *,
    listener: socket.socket | None = None,
    on_listening: Callable[[str], None] = lambda url: None,
    every_second: Callable[[], object] = lambda: None,
    supervised: bool = False,
) -> None:
    """Serve `app`, from create_app, until a signal or app.state.shutdown.begin(); then drain and return.

    listener: from `bind`, None binds here. on_listening: receives the server's URL. every_second: called on the event
    loop. supervised: a second signal has no effect. Raises ConfigError if the address cannot be bound, the certificate
    is invalid or the process has too few file descriptors.
    """
    scheme = "http" if certificate_of(config) is None else "https"
    listener = listener or bind(config.host, config.port)
    _raise_file_limit()
    app.state.url = url_of(listener, scheme)
    server = Server(app, config, on_listening, every_second)

    async def serve_until_signal() -> None:
        with _signals(server, supervised=supervised):
            await server.serve(listener, app.state.url)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve_until_signal())


@contextlib.contextmanager
def _signals(server: Server, *, supervised: bool) -> Iterator[None]:
    """The first signal starts the shutdown; the second has the kernel's default effect and ends the process."""
    loop = asyncio.get_running_loop()

    def begin_shutdown(number: int, frame: Any) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN if supervised else signal.SIG_DFL)
        loop.call_soon_threadsafe(server.shutdown.begin)

    def reload(number: int, frame: Any) -> None:
        loop.call_soon_threadsafe(server.reload.begin)

    before = {number: signal.signal(number, begin_shutdown) for number in (signal.SIGINT, signal.SIGTERM)}
    if hasattr(signal, "SIGHUP"):  # not on Windows
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, reload)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.asynccontextmanager
async def serve_metrics(
    engine: EngineClient, metrics: MetricsSource, config: ServerConfig, shutdown: Shutdown, reload: Reload
) -> AsyncIterator[int]:
    """Serves /metrics alone at `config.host` and `config.prometheus_port` during the block; yields the port.

    compose.py opens it in the app's lifespan, on the engine's event loop. It has the certificate and the checks of slow
    clients of the main port, and needs no key. Port 0: any free one.
    Raises ConfigError if the port cannot be bound.
    """
    assert config.prometheus_port is not None, "called only if the port is configured"
    listener = bind(config.host, config.prometheus_port, option="--prometheus-port")
    backpressure = WriteBackpressure(config.payload_limit)
    table = Table((), [metrics_page(metrics, config)], render_any)
    handler = HttpHandler(engine, table, config, RequestPipeline(Gate(ServerConfig()), shutdown), backpressure)
    limits = ConnectionLimits(MAX_METRICS_CONNECTIONS, MAX_METRICS_CONNECTIONS)
    port = HttpPort(handler, config, limits, backpressure, reload)
    port.open(listener)
    scheme = "http" if certificate_of(config) is None else "https"
    _log.info("listening", extra={"fields": {"url": url_of(listener, scheme) + "/metrics"}})
    try:
        yield listener.getsockname()[1]
    finally:
        await port.close(METRICS_SHUTDOWN_S)


def _raise_file_limit() -> None:
    """Each connection needs a file descriptor; many systems start processes with 1,024 and allow more on request."""
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft < target:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
