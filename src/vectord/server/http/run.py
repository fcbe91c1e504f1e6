"""The process around the app: one listening socket, signals, and an end in which every accepted request is answered.

Called by compose on the main thread; returns when the server has drained. The order of the end:

    signal -> no connection is accepted any more; new requests on open ones get 503 and Connection: close
           -> engine.drain(): what was accepted is answered, within shutdown_timeout_secs
           -> connections close as they fall idle -> the app's lifespan closes the engine

What runs out of time is answered with 503 too. A second signal ends the process at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal, cast

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp

from vectord.compute.heap import trim_heap
from vectord.config import ServerConfig
from vectord.engine.client import EngineClient
from vectord.errors import ConfigError
from vectord.server.http.hardening.http_protocol import HttpProtocol
from vectord.server.http.shutdown import Shutdown
from vectord.server.http.tls import Certificate, certificate_of
from vectord.server.http.watching import WatchingServer

BACKLOG = 2048  # connections the kernel may hold until they are accepted
KEEP_ALIVE_S = 75  # longer than common clients keep idle connections, so that they close first and lose no request
FAREWELL_S = 0.25  # how long idle connections stay open into the end: a request on its way gets its 503
LAST_WORDS_S = 1.0  # for the answers of requests that ran out of time to be written
TICK_S = 0.02

_log = logging.getLogger("vectord.server")


def serve(
    app: Starlette,
    config: ServerConfig,
    *,
    listener: socket.socket | None = None,
    on_listening: Callable[[str], None] | None = None,
) -> None:
    """Serve `app`, made by create_app, until a signal or app.state.shutdown.begin(); drain; return.

    listener: from `bind`, bound here by default. on_listening: told the server's URL once it answers.
    Raises ConfigError if the address cannot be bound, or a certificate not used.
    """
    certificate = certificate_of(config)
    listener = listener or bind(config.host, config.port)
    _raise_file_limit()
    url = url_of(listener, "http" if certificate is None else "https")
    server = Server(app, config, url, on_listening, certificate)
    server.run(sockets=[listener])


def bind(host: str, port: int, *, option: str = "--port") -> socket.socket:
    """A socket bound to `host` and `port`, not yet listening. port 0: any free one.

    Raises ConfigError, naming the `option` to change, if it cannot.
    """
    try:
        family, address = _address(host, port)
        listener = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, ValueError):  # ValueError: a name that cannot even be asked for
        raise ConfigError(f"--host {host!r} is no address of this machine.") from None
    try:
        if os.name == "posix":  # elsewhere the option lets two processes have one port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if address[0] == "::":
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(address)
        listener.set_inheritable(True)
    except OSError as problem:
        listener.close()
        raise ConfigError(_why_not(problem, host, port, option)) from None
    return listener


def url_of(listener: socket.socket, scheme: str = "http") -> str:
    host, port = listener.getsockname()[:2]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


class Server(WatchingServer):
    """With our signals and our end."""

    def __init__(
        self,
        app: Starlette,
        config: ServerConfig,
        url: str,
        on_listening: Callable[[str], None] | None,
        certificate: Certificate | None = None,
    ) -> None:
        super().__init__(uvicorn_config(app, config, certificate), app.state.unsent)
        self._engine: EngineClient = app.state.engine
        self._shutdown: Shutdown = app.state.shutdown
        self._shutdown.on_begin(partial(setattr, self, "should_exit", True))
        self._timeout_s = config.shutdown_timeout_secs
        self._url = url
        self._on_listening = on_listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            _log.info("listening", extra={"fields": {"url": self._url}})
            if self._on_listening is not None:
                self._on_listening(self._url)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The first signal begins the end, the second has the kernel's own effect: the process is gone."""

        def leave(number: int, frame: Any) -> None:
            for each in before:
                signal.signal(each, signal.SIG_DFL)
            self._shutdown.begin()

        before = {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _watch(self, now_s: float) -> None:
        super()._watch(now_s)
        if self._unsent.emptied():
            asyncio.get_running_loop().run_in_executor(None, trim_heap)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        self._shutdown.begin()
        _log.info("draining", extra={"fields": {"requests": len(self.server_state.tasks)}})
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        draining = loop.create_task(self._engine.drain())
        await self._connections_gone(began_s + FAREWELL_S, began_s + max(self._timeout_s, FAREWELL_S))
        await self._cut_short(draining)
        await self.lifespan.shutdown()
        _log.info("stopped", extra={"fields": {"seconds": round(loop.time() - began_s, 3)}})

    async def _connections_gone(self, farewell_s: float, deadline_s: float) -> None:
        """Close connections as they fall idle, after `farewell_s`; give up at `deadline_s`. Both in loop time."""
        loop = asyncio.get_running_loop()
        while self.server_state.connections and loop.time() < deadline_s:
            if loop.time() >= farewell_s:
                for connection in self._connections():
                    connection.close_if_idle()
            await asyncio.sleep(TICK_S)

    async def _cut_short(self, draining: asyncio.Task[None]) -> None:
        """Answer what is left with 503 and let go of every connection. Does nothing after an end in time."""
        tasks = list(self.server_state.tasks)
        if tasks:
            _log.warning("out of time", extra={"fields": {"requests": len(tasks)}})
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=LAST_WORDS_S)
        for connection in self._connections():
            connection.transport.close()
        draining.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await draining


def uvicorn_config(
    app: ASGIApp, config: ServerConfig, certificate: Certificate | None, lifespan: Literal["on", "off"] = "on"
) -> uvicorn.Config:
    """uvicorn's settings; those it would read from the environment are given."""
    return uvicorn.Config(
        app,
        http=cast("type[asyncio.Protocol]", partial(HttpProtocol, header_limit_bytes=config.header_limit_bytes)),
        ws="none",
        lifespan=lifespan,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        forwarded_allow_ips="",
        workers=1,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        ssl_certfile=None if certificate is None else certificate.chain_file,
        ssl_keyfile=None if certificate is None else certificate.key_file,
    )


def _address(host: str, port: int) -> tuple[int, tuple[Any, ...]]:
    """Family and socket address; IPv4 first where a name has both, since that is what clients try for localhost."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, address


def _why_not(problem: OSError, host: str, port: int, option: str) -> str:
    if problem.errno == errno.EADDRINUSE:
        return f"Port {port} on {host} is in use; stop what listens there or choose another with {option}."
    if problem.errno == errno.EACCES:
        return f"Port {port} needs more rights than this process has; choose one above 1023 with {option}."
    return f"Cannot listen on {host} port {port}: {problem.strerror}."


def _raise_file_limit() -> None:
    """Each connection is a file; many systems start processes with 1,024 of them and allow more on request."""
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
