"""Serves the app in this process: one listening socket, signals, and a shutdown that answers every accepted request.

compose.py calls `serve` on the main thread; it returns when the server has drained. Order of the shutdown:

    SIGTERM, SIGINT -> no new connections; new requests on open connections get 503 and Connection: close
           -> engine.drain(): accepted requests are answered, within shutdown_timeout_secs
           -> idle connections close -> the app's lifespan closes the engine

Requests that exceed the timeout get 503. A second signal ends the process immediately; in a process of the supervisor
it has no effect, because systemd and the supervisor both send one. SIGHUP: keys and certificates are read again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, Literal, cast

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp

from vectord.config import ServerConfig
from vectord.engine.client import EngineClient
from vectord.housekeeping import Housekeeping
from vectord.observability.logs import START
from vectord.products.common.errors import render_any
from vectord.server.admission.gate import Gate
from vectord.server.http.app import MetricsSource, metrics_page
from vectord.server.http.handler import HttpHandler
from vectord.server.http.hardening.acceptor import Acceptor
from vectord.server.http.hardening.connection_limits import ConnectionLimits, ConnectionSlot, configured_limits
from vectord.server.http.hardening.http_protocol import HeadRoom, HttpProtocol, ParseTurns
from vectord.server.http.hardening.write_backpressure import WriteBackpressure
from vectord.server.http.listener import Certificate, bind, certificate_of, reload_certificate, url_of
from vectord.server.http.routing import Table
from vectord.server.pipeline import Reload, RequestPipeline, Shutdown

MIN_DRAIN_S = 0.25  # idle connections stay open this long during shutdown, so that a request in flight gets its 503
FIRST_REQUEST_DRAIN_S = 1.0  # the same, for connections that the kernel had queued and whose request has not arrived
CANCELLED_S = 1.0  # time to send the responses of cancelled requests
METRICS_SHUTDOWN_S = 1
MAX_METRICS_CONNECTIONS = 16
TICK_S = 0.02
TICKS_PER_S = 10  # uvicorn's

_log = logging.getLogger("vectord.server")


def serve(
    app: Starlette,
    config: ServerConfig,
    *,
    listener: socket.socket | None = None,
    on_listening: Callable[[str], None] | None = None,
    every_second: Callable[[], object] | None = None,
    supervised: bool = False,
) -> None:
    """Serve `app`, from create_app, until a signal or app.state.shutdown.begin(); then drain and return.

    listener: from `bind`, None binds here. on_listening: receives the server's URL. every_second: called on the event
    loop. supervised: a second signal has no effect. Raises ConfigError if the address cannot be bound, the certificate
    is invalid or the process has too few file descriptors.
    """
    certificate = certificate_of(config)
    listener = listener or bind(config.host, config.port)
    _raise_file_limit()
    app.state.url = url = url_of(listener, "http" if certificate is None else "https")
    server = Server(app, config, url, on_listening, certificate, every_second, supervised=supervised)
    server.run(sockets=[listener])


class WatchingServer(uvicorn.Server):
    """uvicorn's server with limited connections, plus a check of slow clients every second. Handles no signals."""

    def __init__(self, settings: uvicorn.Config, backpressure: WriteBackpressure, limits: ConnectionLimits) -> None:
        super().__init__(settings)
        self._backpressure = backpressure
        self._limits = limits
        self._acceptors: list[Acceptor] = []
        self._housekeeping = Housekeeping("the check of the connections")
        backpressure.watch(self._connections)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        settings = self.config

        def create_protocol(slot: ConnectionSlot) -> asyncio.Protocol:
            create = cast("Callable[..., asyncio.Protocol]", settings.http_protocol_class)
            return create(settings, self.server_state, self.lifespan.state, slot=slot)

        for listener in sockets or []:
            self._acceptors.append(Acceptor(listener, create_protocol, self._limits, settings.ssl))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._close_port()
        await super().shutdown(sockets)

    def _close_port(self) -> None:
        for acceptor in self._acceptors:
            acceptor.close()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        if counter % TICKS_PER_S == 0:
            self._housekeeping.run(self._watch, asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    def _watch(self, now_s: float) -> None:
        timeout_factor = self._limits.timeout_factor()
        for connection in self._connections():
            connection.drop_if_stalled(now_s, timeout_factor)
        self._backpressure.make_room(now_s)
        self._limits.report(now_s)

    def _connections(self) -> list[HttpProtocol]:
        return cast("list[HttpProtocol]", list(self.server_state.connections))


class Server(WatchingServer):
    """The server of this process, with signal handling and shutdown."""

    def __init__(
        self,
        app: Starlette,
        config: ServerConfig,
        url: str,
        on_listening: Callable[[str], None] | None,
        certificate: Certificate | None = None,
        every_second: Callable[[], object] | None = None,
        *,
        supervised: bool = False,
    ) -> None:
        limits = ConnectionLimits(
            *configured_limits(
                config.max_connections, config.max_connections_per_address, with_grpc=config.grpc_port is not None
            ),
            app.state.gate,
            app.state.connection_observer,
        )
        settings = uvicorn_config(app, config, certificate)
        super().__init__(settings, app.state.backpressure, limits)
        self._engine: EngineClient = app.state.engine
        self._shutdown: Shutdown = app.state.shutdown
        self._shutdown.on_begin(partial(setattr, self, "should_exit", True))
        self._timeout_s = config.shutdown_timeout_secs
        self._url = url
        self._on_listening = on_listening
        self._every_second = every_second
        self._supervised = supervised
        self._reload: Reload = app.state.pipeline.reload
        self._reload.on_begin(partial(_reload_certificate, settings, config))
        self._must_reload = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            START.info("listening", extra={"fields": {"url": self._url}})
            if self._on_listening is not None:
                self._on_listening(self._url)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The first signal starts the shutdown; the second has the kernel's default effect and ends the process."""

        def begin_shutdown(number: int, frame: Any) -> None:
            for each in (signal.SIGINT, signal.SIGTERM):
                signal.signal(each, signal.SIG_IGN if self._supervised else signal.SIG_DFL)
            self._shutdown.begin()

        def request_reload(number: int, frame: Any) -> None:
            self._must_reload = True

        before = {number: signal.signal(number, begin_shutdown) for number in (signal.SIGINT, signal.SIGTERM)}
        if hasattr(signal, "SIGHUP"):  # not on Windows
            before[signal.SIGHUP] = signal.signal(signal.SIGHUP, request_reload)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def on_tick(self, counter: int) -> bool:
        if self._must_reload:
            self._must_reload = False
            self._reload.begin()
        return await super().on_tick(counter)

    def _watch(self, now_s: float) -> None:
        super()._watch(now_s)
        if self._every_second is not None:
            self._every_second()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        self._shutdown.begin()
        _log.info("draining", extra={"fields": {"requests": len(self.server_state.tasks)}})
        self._close_port()
        draining = loop.create_task(self._engine.drain())
        await self._drain_connections(began_s)
        await self._cancel_requests(draining)
        await self.lifespan.shutdown()
        _log.info("stopped", extra={"fields": {"seconds": round(loop.time() - began_s, 3)}})

    async def _drain_connections(self, began_s: float) -> None:
        """Close idle connections until none is left or the timeout has passed. began_s: in loop time."""
        loop = asyncio.get_running_loop()
        deadline_s = began_s + max(self._timeout_s, MIN_DRAIN_S)
        while loop.time() < deadline_s and (
            self.server_state.connections or any(acceptor.is_opening for acceptor in self._acceptors)
        ):
            draining_s = loop.time() - began_s
            if draining_s >= MIN_DRAIN_S:
                for connection in self._connections():
                    connection.close_if_idle(before_request=draining_s >= FIRST_REQUEST_DRAIN_S)
            await asyncio.sleep(TICK_S)

    async def _cancel_requests(self, draining: asyncio.Task[None]) -> None:
        """Answer the remaining requests with 503 and close all connections. No effect if all were answered in time."""
        tasks = list(self.server_state.tasks)
        if tasks:
            _log.warning("shutdown timeout: cancelling requests", extra={"fields": {"requests": len(tasks)}})
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=CANCELLED_S)
        for connection in self._connections():
            connection.transport.close()
        draining.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await draining


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
    certificate = certificate_of(config)
    listener = bind(config.host, config.prometheus_port, option="--prometheus-port")
    backpressure = WriteBackpressure(config.payload_limit)
    table = Table((), [metrics_page(metrics, config)], render_any)
    handler = HttpHandler(engine, table, config, RequestPipeline(Gate(ServerConfig()), shutdown), backpressure)
    settings = uvicorn_config(handler, config, certificate, "off")
    settings.timeout_graceful_shutdown = METRICS_SHUTDOWN_S
    reload.on_begin(partial(_reload_certificate, settings, config))
    limits = ConnectionLimits(MAX_METRICS_CONNECTIONS, MAX_METRICS_CONNECTIONS)
    server = WatchingServer(settings, backpressure, limits)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    _log.info("listening", extra={"fields": {"url": url_of(listener, "https" if certificate else "http") + "/metrics"}})
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await serving


def uvicorn_config(
    app: ASGIApp,
    config: ServerConfig,
    certificate: Certificate | None,
    lifespan: Literal["on", "off"] = "on",
) -> uvicorn.Config:
    """uvicorn's settings, including those that it would read from the environment."""
    protocol = partial(
        HttpProtocol,
        header_limit_bytes=config.header_limit_bytes,
        head_room=HeadRoom(),
        turns=ParseTurns(),
    )
    return uvicorn.Config(
        app,
        http=cast("type[asyncio.Protocol]", protocol),
        ws="none",
        lifespan=lifespan,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        forwarded_allow_ips="",
        workers=1,
        ssl_certfile=None if certificate is None else certificate.chain_file,
        ssl_keyfile=None if certificate is None else certificate.key_file,
    )


def _reload_certificate(settings: uvicorn.Config, config: ServerConfig) -> None:
    """Raises ConfigError."""
    if settings.loaded and settings.ssl is not None:
        reload_certificate(config, settings.ssl)


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
