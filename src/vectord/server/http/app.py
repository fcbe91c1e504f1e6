"""Assembles the ASGI app: products and pages in one table, with one handler. compose.py calls this once per process.

The app runs under any ASGI server; run.py serves it in this process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, nullcontext
from typing import Any, Protocol

from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.types import ASGIApp

from vectord import __version__
from vectord.config import ServerConfig
from vectord.engine.client import EngineClient
from vectord.observability.exchange import ConnectionsCounted, Exchange
from vectord.observability.metrics import FigurePart
from vectord.observability.tracing import Tracing
from vectord.products.common.dialect import Dialect, Rendered, find_dialect
from vectord.products.common.errors import render_any
from vectord.products.common.vectors import dump_json
from vectord.schema import ANYONE
from vectord.server.admission.gate import Gate
from vectord.server.admission.keys import Keys
from vectord.server.batches.runner import BatchRunner
from vectord.server.batches.store import BatchStore
from vectord.server.http.handler import HttpHandler
from vectord.server.http.hardening.write_backpressure import WriteBackpressure
from vectord.server.http.incoming import guards_of
from vectord.server.http.origins import Origins
from vectord.server.http.probes import probe_pages
from vectord.server.http.routing import Page, Table
from vectord.server.media_urls import MediaUrls
from vectord.server.pages.console import Viewer, console_pages
from vectord.server.pages.docs import docs_pages
from vectord.server.pages.examples import examples
from vectord.server.pages.openapi import OCTETS_HEADERS, RESULT_HEADERS, openapi_pages
from vectord.server.pipeline import RequestPipeline, Shutdown
from vectord.server.results import SERVER_TIMING

# Response headers that pages of other origins may read.
EXPOSED_HEADERS = sorted(("retry-after", "retry-after-ms", SERVER_TIMING, *RESULT_HEADERS, *OCTETS_HEADERS))
DEFAULTS = ServerConfig()


class MetricsSource(Protocol):
    """This process's metrics (observability/metrics.py) or the engine process's (cluster/remote/client.py)."""

    def observe(self, event: Exchange | ConnectionsCounted) -> None: ...

    def exposition(self, accept: str = "") -> Awaitable[tuple[bytes, str]]: ...

    def figures(self, part: FigurePart) -> Awaitable[Mapping[str, Any] | None]: ...


class App(Starlette):
    """Starlette for the lifespan and state; every request goes to our handler.

    Products share paths, so routing needs our own table, and the handler renders all errors: Starlette's middleware and
    router would only cost time (25 us per request on a busy server).
    """

    def __init__(self, handler: ASGIApp, lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]]) -> None:
        super().__init__(lifespan=lifespan)
        self._handler = handler

    def build_middleware_stack(self) -> ASGIApp:
        """Starlette calls this once, before the first event."""
        return self._handler


def create_app(
    engine: EngineClient,
    dialects: Sequence[Dialect],
    config: ServerConfig,
    metrics: MetricsSource | None = None,
    lifespan: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    gate: Gate | None = None,
    tracer: Tracing | None = None,
    batches: BatchStore | None = None,
) -> Starlette:
    """The ASGI app over `engine`. `lifespan` starts and closes the engine; requests are answered from the beginning.

    dialects: in order of precedence; metrics: None serves no /metrics; gate: None creates one from `config`, which
    raises ConfigError; batches: None serves no routes of stored files and batches. run.py and grpc/ read app.state.
    """
    shutdown = Shutdown()
    gate = gate or Gate(config, dialects)
    observer = None if metrics is None else metrics.observe
    pipeline = RequestPipeline(gate, shutdown, observer, tracer, _media_urls(config))
    backpressure = WriteBackpressure(config.payload_limit)
    if batches is not None:
        dialects = [replace(dialect, routes=dialect.routes + dialect.batch_routes) for dialect in dialects]
    table = build_table(engine, dialects, shutdown, metrics, config, gate.keys)

    runner = None
    if batches is not None:
        runner = BatchRunner(batches, engine, table, pipeline, guards_of(engine, config))

    @asynccontextmanager
    async def live(app: Starlette) -> AsyncIterator[None]:
        async with lifespan(), aclosing(gate.limits), nullcontext() if runner is None else runner.running():
            yield

    ask = None if runner is None else runner.answer
    origins = Origins(config)
    handler = HttpHandler(engine, table, config, pipeline, backpressure, ask, origins)
    methods = sorted({"HEAD", *(endpoint.method for endpoint in table)})
    app = App(origins.with_cors(handler, EXPOSED_HEADERS, methods), live)
    app.state.engine = engine
    app.state.shutdown = shutdown
    app.state.pipeline = pipeline
    app.state.backpressure = backpressure
    app.state.connection_observer = None if metrics is None else metrics.observe
    return app


def _media_urls(config: ServerConfig) -> MediaUrls:
    if not config.allow_media_urls:
        return MediaUrls(None, 0)
    from vectord.server.fetching import Fetcher  # noqa: PLC0415 - httpx takes 100 ms

    return MediaUrls(Fetcher(config.allow_media_urls), config.payload_limit)


def build_table(
    engine: EngineClient,
    dialects: Sequence[Dialect],
    shutdown: Shutdown,
    metrics: MetricsSource | None,
    config: ServerConfig = DEFAULTS,
    keys: Keys | None = None,
) -> Table:
    def visible(headers: Mapping[str, str]) -> frozenset[str] | None:
        key = None if keys is None else keys.lookup(headers)
        if key is not None:
            return key.models
        return None if config.names_models_to_anyone else frozenset()

    def example_model(headers: Mapping[str, str]) -> str | None:
        names = visible(headers)
        seen = engine.models(replace(ANYONE, models=names)).models if names is None or names else ()
        return seen[0].name if seen else None

    def viewer(headers: Mapping[str, str]) -> Viewer:
        key = None if keys is None else keys.lookup(headers)
        if key is None:
            return Viewer()
        seen = None if key.models is None else engine.models(replace(ANYONE, models=key.models)).models
        names = None if seen is None else frozenset(info.name for info in seen)
        return Viewer(key=None if key.shared else key.name, models=names, admin=key.admin)

    imitated = find_dialect(dialects, config.imitates)
    pages = [*probe_pages(engine, shutdown, __version__, visible, imitated), *docs_pages()]
    if metrics is not None and config.prometheus_port is None:
        pages.append(metrics_page(metrics, config))
    if metrics is not None and imitated is not None and imitated.figures_path is not None:
        pages.append(figures_page(metrics, imitated.figures_path))
    source = None if metrics is None else metrics.figures
    pages += console_pages(source, viewer, lambda: examples(dialects, table), config.grafana_url)
    pages += openapi_pages(lambda: table, __version__, example_model)
    table = Table(dialects, pages, render_any, config.url_prefix or "")
    return table


def metrics_page(metrics: MetricsSource, config: ServerConfig) -> Page:
    """Needs `config.metrics_key` or the admin key, if the first is set."""
    readers = Keys({"metrics_key": config.metrics_key}, config.admin_key) if config.metrics_key else None

    async def show(headers: Mapping[str, str]) -> Rendered:
        if readers is not None:
            readers.require(readers.lookup(headers), headers)
        body, content_type = await metrics.exposition(headers.get("accept", ""))
        return Rendered(body=body, content_type=content_type)

    return Page(path="/metrics", show=show, summary="Metrics for Prometheus", probe=True, limited=True)


def figures_page(metrics: MetricsSource, path: str) -> Page:
    """The page of `Dialect.figures_path`."""

    async def show(headers: Mapping[str, str]) -> Rendered:
        figures = await metrics.figures("product")
        return Rendered(body=dump_json(figures), headers={"cache-control": "no-store"})

    return Page(path=path, show=show, summary="Counts since the start")
