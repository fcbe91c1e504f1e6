"""Puts the server together: dialects and pages in one table, behind one handler. Called by compose, once.

The app is plain ASGI and runs under any ASGI server; run.py adds what our own process needs around it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, nullcontext

from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from vectord import __version__
from vectord.config import ServerConfig
from vectord.engine.client import EngineClient
from vectord.products.common.dialect import Dialect, Rendered
from vectord.products.common.errors import render_any
from vectord.server.admission.gate import Gate
from vectord.server.http.handler import Handler, Tracer
from vectord.server.http.hardening.unsent import Unsent
from vectord.server.http.meter import Meter, then
from vectord.server.http.probes import probe_pages
from vectord.server.http.routing import Page, Table
from vectord.server.http.shutdown import Shutdown
from vectord.server.pages.calls import calls
from vectord.server.pages.console import console_pages
from vectord.server.pages.docs import docs_pages
from vectord.server.pages.openapi import openapi_pages


class App(Starlette):
    """Starlette for lifespan and state; every request goes to our handler.

    Paths are our own table's, because dialects share them, and the handler answers its own errors: Starlette's
    middleware and router would add nothing but their time (25 us a request on a busy server).
    """

    def __init__(self, handler: ASGIApp, lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]]) -> None:
        super().__init__(lifespan=lifespan)
        self._handler = handler  # or what is around it

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await super().__call__(scope, receive, send)
        else:
            await self._handler(scope, receive, send)


def create_app(
    engine: EngineClient,
    dialects: Sequence[Dialect],
    config: ServerConfig,
    metrics: Meter | None = None,
    lifespan: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    gate: Gate | None = None,
    tracer: Tracer | None = None,
) -> Starlette:
    """The ASGI app over `engine`. It answers at once; `lifespan` starts the engine and closes it.

    dialects: in order of precedence; metrics: None serves no /metrics; gate: None makes one of `config`, which raises
    ConfigError. run.serve finds what it drains in `app.state.engine` and `app.state.shutdown`, what
    its connections hold goes to `app.state.unsent`.
    """
    shutdown = Shutdown()
    gate = gate or Gate(config, dialects)
    unsent = Unsent(config.payload_limit)
    table = build_table(engine, dialects, shutdown, metrics, config.url_prefix or "")

    @asynccontextmanager
    async def live(app: Starlette) -> AsyncIterator[None]:
        async with lifespan(), aclosing(gate.limits):
            gate.limits.open()
            yield

    handler: ASGIApp = Handler(
        engine, table, config, gate, shutdown, None if metrics is None else metrics.observe, tracer, unsent
    )
    if config.cors_allow_origin:
        from vectord.server.http.cors import with_cors  # noqa: PLC0415 - most servers have no use for it

        handler = with_cors(handler, config.cors_allow_origin)
    app = App(handler, live)
    app.state.engine = engine
    app.state.shutdown = shutdown
    app.state.gate = gate
    app.state.unsent = unsent
    return app


def build_table(
    engine: EngineClient,
    dialects: Sequence[Dialect],
    shutdown: Shutdown,
    metrics: Meter | None,
    url_prefix: str = "",
) -> Table:
    pages = [*probe_pages(engine, shutdown, __version__), *docs_pages()]
    if metrics is not None:
        pages.append(metrics_page(metrics))
    pages += console_pages(metrics, lambda: calls(dialects, table))
    pages += openapi_pages(lambda: table, __version__)
    table = Table(dialects, pages, render_any, url_prefix)
    if metrics is not None:
        metrics.expect_routes((endpoint.speaker, endpoint.path) for endpoint in table)
    return table


def metrics_page(metrics: Meter) -> Page:
    def show(headers: Mapping[str, str]) -> Rendered | Awaitable[Rendered]:
        return then(
            metrics.exposition(headers.get("accept", "")), lambda page: Rendered(body=page[0], content_type=page[1])
        )

    return Page(path="/metrics", show=show, summary="What Prometheus reads")
