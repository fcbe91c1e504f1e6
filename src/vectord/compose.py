"""Config -> models, engine, server: the only file that knows every part. Called by cli/ and asgi.py, once per process.

An invalid configuration raises StartError before a port opens. Loading and compiling continue after it has opened.
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, replace
from importlib.util import find_spec

import msgspec
from starlette.applications import Starlette

from vectord import __version__
from vectord.compute.processor import lower_other_threads, prepare_process, thread_budget
from vectord.config import Config, ServerConfig
from vectord.engine.cache.redis_store import RedisStore
from vectord.engine.cache.shared import shared_secret
from vectord.engine.engine import Engine
from vectord.engine.events import Observer, discard
from vectord.engine.models import open_composites, open_models
from vectord.engine.models.registry import ModelSource
from vectord.engine.queue.runner import CLOSE_TIMEOUT_S
from vectord.errors import ConfigError, ExitCode, installing
from vectord.observability.logs import FACTS, START, rename_events
from vectord.observability.metrics import Metrics
from vectord.observability.tracing import open_tracing
from vectord.products.common.dialect import Dialect, find_dialect, load_dialects
from vectord.server.admission.gate import Gate
from vectord.server.admission.rate_limit import Buckets
from vectord.server.batches.store import BatchStore
from vectord.server.http.app import create_app

log = logging.getLogger("vectord")

EXIT_CLOSE_TIMEOUT_S = 0.3  # for a process of ours, which may end while threads are in native code
NAMED_MODELS = 3  # in the line that says what is served


class Composition(msgspec.Struct, frozen=True):
    app: Starlette  # its lifespan starts and closes the engine
    engine: Engine
    metrics: Metrics | None
    buckets: Buckets  # of the rate limits


def build(
    config: Config, close_timeout_s: float = CLOSE_TIMEOUT_S, models: Sequence[ModelSource] | None = None
) -> Composition:
    """The app of this configuration, not started.

    close_timeout_s: how long the end of the app's lifespan waits for running forwards and compiling backends.
    models: of this configuration; None opens them.
    May block for a download. Raises StartError: a model that is not found, an unknown backend or dialect.
    """
    dialects = load_dialects(config.server.dialects)
    imitated = _imitated(config)
    for option, value, library in (
        ("grpc_port", config.server.grpc_port, "grpc"),
        ("redis_url", config.server.redis_url, "redis"),
        ("shared_cache", config.engine.shared_cache, "redis"),
    ):
        if value is not None and find_spec(library) is None:
            raise ConfigError(f"{option}: {library} is not installed; run {installing(library)}")
    try:
        buckets = Buckets(config.server.redis_url)
    except ValueError:  # redis-py's error may quote a part of the password
        raise ConfigError("redis_url: expected a URL such as redis://host:6379/0") from None
    gate = Gate(config.server, dialects, buckets)
    metrics = None
    if config.telemetry.enable_metrics:
        families = None if imitated is None or imitated.metrics is None else imitated.metrics(asdict(config.model))
        private = config.server.metrics_are_private
        names_models = private or config.server.names_models_to_anyone
        metrics = Metrics(__version__, families, names_keys=private, names_models=names_models)
    engine = _engine(config, discard if metrics is None else metrics.observe, models)
    tracing = open_tracing(config.telemetry, __version__)

    if metrics is not None:
        metrics.watch(engine.gauges, lambda: engine.models().models)
        metrics.watch_keys(gate.keys.names)

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        _log_settings(config)
        await engine.start()
        tasks = [asyncio.create_task(_stop_if_start_failed(engine, app, config))]
        if metrics is not None:
            tasks.append(asyncio.create_task(metrics.keep_history(), name="vectord-history"))
        try:
            async with AsyncExitStack() as ports:  # the engine is drained before they close
                if config.server.prometheus_port is not None and metrics is not None:
                    from vectord.server.http.run import serve_metrics  # noqa: PLC0415 - as in `serve`

                    reload = app.state.pipeline.reload
                    port = serve_metrics(engine, metrics, config.server, app.state.shutdown, reload)
                    await ports.enter_async_context(port)
                if config.server.grpc_port is not None:
                    # grpc is an extra and takes 100 ms.
                    from vectord.server.grpc.server import serve_grpc  # noqa: PLC0415

                    await ports.enter_async_context(serve_grpc(engine, config.server, app.state.pipeline))
                yield
        finally:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            await engine.close(close_timeout_s)
            if tracing is not None:
                await tracing.close(config.server.shutdown_timeout_secs)

    app = create_app(engine, dialects, config.server, metrics, lifespan, gate, tracing, open_batches(config.server))
    return Composition(app, engine, metrics, buckets)


def open_batches(config: ServerConfig) -> BatchStore | None:
    if config.batch_dir is None:
        return None
    return BatchStore(config.batch_dir, config.batch_disk_limit, round(config.batch_retention_hours * 3600))


def _engine(config: Config, observer: Observer, models: Sequence[ModelSource] | None = None) -> Engine:
    """The engine with its models, not started."""
    models = open_models(config) if models is None else models
    composites = open_composites(config.model, models)
    threads = min(config.device.num_threads or thread_budget(), thread_budget())
    workers = config.engine.tokenization_workers or threads
    shared = config.engine.shared_cache
    return Engine(
        models,
        replace(config.engine, tokenization_workers=workers),
        max_batch_texts=config.device.max_batch_requests,
        observer=observer,
        composites=composites,
        store=None if shared is None else RedisStore(shared, config.engine.shared_cache_ttl_s),
        store_secret=shared_secret(config.engine),
        pulling=config,
    )


@asynccontextmanager
async def running_engine(
    config: Config, before_loading: Callable[[Engine], None] | None = None
) -> AsyncIterator[Engine]:
    """The engine without a server, its models loaded or failed, for commands. Raises StartError, and what
    `before_loading` raises about the opened models."""
    prepare_process()
    engine = _engine(config, discard)
    if before_loading is not None:
        before_loading(engine)
    await engine.start()
    try:
        await engine.loaded.wait()
        yield engine
    finally:
        await engine.close()


def serve(config: Config, models: Sequence[ModelSource] | None = None) -> int:
    """Serve until a signal. models: see `build`. Called after `prepare_process`.

    Returns the exit code: 0, or 1 if the models could not be loaded.
    """
    from vectord.server.http import run  # noqa: PLC0415 - another ASGI server does not need it

    composed = build(config, EXIT_CLOSE_TIMEOUT_S, models)
    gc.freeze()  # 50,000 permanent objects: a full collection stops the event loop for 70 ms with them, 7 without
    warn_if_open(config.server)
    run.serve(composed.app, config.server, every_second=lower_other_threads)
    return exit_code(composed.engine)


def exit_code(engine: Engine) -> int:
    """The exit code of a process whose engine has served, or could not load its models."""
    return ExitCode.NOTHING_SERVED if engine.start_failed else 0


async def _stop_if_start_failed(engine: Engine, app: Starlette, config: Config) -> None:
    try:
        await engine.loaded.wait()
    except asyncio.CancelledError:  # the server stops while models load
        for failure in _failures(engine):
            log.error("%s", failure)
        raise
    if engine.start_failed:
        only_failures = set(engine.readiness().values()) == {"failed"}
        line = "no model could be loaded: stopping" if only_failures else "not every model could be loaded: stopping"
        log.error("%s", "; ".join((line, *_failures(engine))))
        app.state.shutdown.begin()
        return
    _log_ready(engine, config, getattr(app.state, "url", None))


def _log_ready(engine: Engine, config: Config, url: str | None) -> None:
    """Logs what is served and where; in some profiles also the lines that scripts of another server wait for."""
    models = engine.models().models
    failed = _failures(engine)
    names = [one.name for one in models if one.state != "failed"]
    served = ", ".join(names) if len(names) <= NAMED_MODELS else f"{len(names)} models"
    where = "" if url is None else f" at {url} (console) and {url}/docs (API)"
    summary = f"vectord {__version__} serves {served}{where}"
    if failed:
        ready = f"{sum(one.state == 'ready' for one in models)} of {len(models)} models ready"
        START.warning("%s", "; ".join((summary, ready, *failed)))
    else:
        START.info("%s", summary)
    dialect = _imitated(config)
    if dialect is not None and dialect.ready_lines is not None:
        for line in dialect.ready_lines(models):
            START.info("%s", line)


def _failures(engine: Engine) -> list[str]:
    """The models that could not be loaded, each with the reason."""
    return [f"{name} failed: {engine.failure(name)}" for name, state in engine.readiness().items() if state == "failed"]


def _log_settings(config: Config) -> None:
    """Logs the settings in force."""
    fields: dict[str, object] = {
        "models": ",".join(config.model.in_order),
        "device": config.device.device,
        "dtype": config.device.dtype,
        "max_batch_tokens": config.device.max_batch_tokens or "auto",
        "max_client_batch_size": config.engine.max_client_batch_size,
        "max_concurrent_requests": config.engine.max_concurrent_requests,
        "dialects": ",".join(dialect.name for dialect in load_dialects(config.server.dialects)),
    }
    dialect = _imitated(config)
    if dialect is not None and dialect.logged_settings is not None:
        fields |= dialect.logged_settings(asdict(config), config.model.in_order)
    rename_events({} if dialect is None else dialect.log_events)
    FACTS.info("settings", extra={"fields": fields})


def _imitated(config: Config) -> Dialect | None:
    """Raises ConfigError if there is no such dialect, or the server does not serve it."""
    name = config.server.imitates
    if name is None:
        return None
    imitated = find_dialect(load_dialects(config.server.dialects), name)
    if imitated is None:
        raise ConfigError(f"imitates: {name} is not one of the --dialects; add it there, or set another --imitates")
    return imitated


def warn_if_open(config: ServerConfig) -> None:
    """Logs a warning if other machines can use the server without a key."""
    try:
        is_loopback = ipaddress.ip_address(config.host).is_loopback
    except ValueError:
        is_loopback = config.host == "localhost"
    if config.demands_key or is_loopback:
        return
    log.warning(
        "ANYONE who can reach %s port %d may use this server: it listens beyond this machine without a key. "
        "Set --api-key (VECTORD_API_KEY) or --api-keys-file, or --host 127.0.0.1.",
        config.host,
        config.port,
    )
