"""Config -> models, engine, app: the file that knows every part. Called by cli.py and asgi.py, once a process.

What can be wrong with a configuration is found before the port is bound (StartError). What takes long, loading and
compiling, goes on behind the open port.
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec

from starlette.applications import Starlette

from vectord import __version__
from vectord.compute.processor import thread_budget
from vectord.config import Config, EngineConfig, ModelConfig, ServerConfig
from vectord.engine.cache.redis_store import RedisStore
from vectord.engine.cache.secret import shared_secret
from vectord.engine.engine import Engine
from vectord.engine.events import Observer, discard
from vectord.engine.models import open_composites, open_models
from vectord.errors import ConfigError, ExitCode
from vectord.observability import logs
from vectord.observability.instruments import MetricFamilies
from vectord.observability.metrics import Metrics
from vectord.observability.tracing import Tracing, open_tracing
from vectord.products.common.dialect import all_dialects, load_dialects
from vectord.server.admission.gate import Gate
from vectord.server.admission.rate_limit import Buckets
from vectord.server.http.app import create_app
from vectord.server.http.tls import certificate_of

log = logging.getLogger("vectord")


@dataclass(frozen=True, slots=True)
class Composition:
    app: Starlette  # its lifespan starts and closes the engine
    engine: Engine
    metrics: Metrics | None
    buckets: Buckets  # what limits draw on


def build(config: Config, around: Callable[[Observer], Observer] = lambda observer: observer) -> Composition:
    """The app of this configuration, nothing running yet. around: what the engine tells instead of its observer.

    May block for a download. Raises StartError: a model that is nowhere, an unknown backend or dialect.
    """
    dialects = load_dialects(config.server.dialects)
    if config.server.grpc_port is not None and find_spec("grpc") is None:
        raise ConfigError("grpc_port: grpc is not installed here; it comes with pip install 'vectord[grpc]'")
    if config.server.redis_url is not None and find_spec("redis") is None:
        raise ConfigError("redis_url: redis is not installed here; it comes with pip install 'vectord[redis]'")
    if config.engine.shared_cache is not None and find_spec("redis") is None:
        raise ConfigError("shared_cache: redis is not installed here; it comes with pip install 'vectord[redis]'")
    buckets = Buckets(config.server.redis_url)
    gate = Gate(config.server, dialects, buckets)
    metrics = Metrics(__version__, _product_metrics(config.model)) if config.telemetry.enable_metrics else None
    engine = _engine(config, around(discard if metrics is None else metrics.observe))
    tracing = open_tracing(config.telemetry, __version__)

    if metrics is not None:
        metrics.watch(engine.gauges, lambda: engine.models().models)
        metrics.watch_keys(gate.keys.names)

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        _tell_settings(config)
        await engine.start()
        watch = asyncio.create_task(_stop_if_nothing_loads(engine, app))
        try:
            async with _further_ports(engine, config.server, app, metrics, tracing):
                yield
        finally:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch
            await engine.close()
            if tracing is not None:
                await tracing.close(config.server.shutdown_timeout_secs)

    app = create_app(engine, dialects, config.server, metrics, lifespan, gate, tracing)
    return Composition(app, engine, metrics, buckets)


def _engine(config: Config, observer: Observer) -> Engine:
    """The engine with its models, nothing running yet. Raises StartError."""
    models = open_models(config)
    composites = open_composites(config.model, models)
    threads = min(config.device.num_threads or thread_budget(), thread_budget())
    workers = config.engine.tokenization_workers or threads
    return Engine(
        models,
        replace(config.engine, tokenization_workers=workers),
        max_batch_texts=config.device.max_batch_requests,
        observer=observer,
        composites=composites,
        store=_store(config.engine),
        store_secret=shared_secret(config.engine),
    )


@asynccontextmanager
async def running_engine(config: Config) -> AsyncIterator[Engine]:
    """The engine alone, its models loaded or failed, for a command that works in this process. Raises StartError."""
    run_without_preempting()
    engine = _engine(config, discard)
    await engine.start()
    try:
        await engine.loaded.wait()
        yield engine
    finally:
        await engine.close()


def serve(config: Config) -> int:
    """Serve until told to stop. Returns the exit code: 0, or 1 if no model could be loaded. Raises StartError."""
    from vectord.server.http import run  # noqa: PLC0415 - uvicorn, which an app under another server does not need

    logs.configure(config.telemetry)
    check_server(config.server)
    run_without_preempting()
    composed = build(config)
    gc.freeze()  # 50,000 objects that stay: with them a full collection stops the event loop for 70 ms, without for 7
    warn_if_open(config.server)
    run.serve(composed.app, config.server)
    return exit_code(composed.engine)


def check_server(config: ServerConfig) -> None:
    """What is wrong with ports and certificates must not wait for models. Raises ConfigError."""
    from vectord.server.http import run  # noqa: PLC0415

    if config.grpc_port:  # bound by the app's lifespan, where a taken port would be a traceback
        run.bind(config.host, config.grpc_port, option="--grpc-port").close()
    if config.prometheus_port:  # as that
        if config.prometheus_port in (config.port, config.grpc_port):
            raise ConfigError(f"--prometheus-port {config.prometheus_port} is another service's port here already.")
        run.bind(config.host, config.prometheus_port, option="--prometheus-port").close()
    certificate_of(config)  # again when it is used


def exit_code(engine: Engine) -> int:
    """Of a process whose engine has served, or could not."""
    return ExitCode.NOTHING_SERVED if _nothing_loaded(engine) else 0


def run_without_preempting() -> None:
    """Linux: let this process's threads wait for their turn instead of interrupting each other when they wake.

    Every answer wakes the event loop, which then takes a core from a forward in the middle of its caches. On 2 cores
    with 32 clients: 25.8 k tokens/s without, 26.7 k with; a lone query takes as long either way.
    """
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):  # a sandbox may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # threads made from here on inherit it


@asynccontextmanager
async def _further_ports(
    engine: Engine, config: ServerConfig, app: Starlette, metrics: Metrics | None, tracing: Tracing | None
) -> AsyncIterator[None]:
    """What listens beside HTTP. When the block ends, the engine has drained."""
    async with AsyncExitStack() as ports:
        if config.prometheus_port is not None and metrics is not None:
            from vectord.server.http.metrics_port import serve_metrics  # noqa: PLC0415 - uvicorn, as in `serve`

            await ports.enter_async_context(serve_metrics(engine, metrics, config, app.state.shutdown))
        if config.grpc_port is not None:
            from vectord.server.grpc.server import serve_grpc  # noqa: PLC0415 - grpc, an extra, which takes 100 ms

            state = app.state
            await ports.enter_async_context(
                serve_grpc(
                    engine,
                    config,
                    state.shutdown,
                    state.gate,
                    observer=None if metrics is None else metrics.observe,
                    tracer=tracing,
                    unsent=state.unsent,
                )
            )
        yield


async def _stop_if_nothing_loads(engine: Engine, app: Starlette) -> None:
    await engine.loaded.wait()
    if _nothing_loaded(engine):
        log.error("no model could be loaded: stopping")
        app.state.shutdown.begin()
        return
    for dialect in all_dialects():
        for line in dialect.ready_lines(engine.models().models) if dialect.ready_lines else ():
            log.info("%s", line)


def _tell_settings(config: Config) -> None:
    """Logs the settings in force."""
    fields = {
        "models": ",".join(config.model.in_order),
        "device": config.device.device,
        "dtype": config.device.dtype,
        "max_batch_tokens": config.device.max_batch_tokens or "auto",
        "max_client_batch_size": config.engine.max_client_batch_size,
        "max_concurrent_requests": config.engine.max_concurrent_requests,
        "dialects": ",".join(config.server.dialects),
    }
    log.info("runtime_config", extra={"fields": fields})


def _store(config: EngineConfig) -> RedisStore | None:
    return None if config.shared_cache is None else RedisStore(config.shared_cache, config.shared_cache_ttl_s)


def _product_metrics(config: ModelConfig) -> list[MetricFamilies]:
    return [dialect.metrics(asdict(config)) for dialect in all_dialects() if dialect.metrics]


def _nothing_loaded(engine: Engine) -> bool:
    return set(engine.readiness().values()) == {"failed"}


def warn_if_open(config: ServerConfig) -> None:
    if config.demands_key or _is_loopback(config.host):
        return
    log.warning(
        "ANYONE who can reach %s port %d may use this server: it listens beyond this machine without a key. "
        "Set --api-key (API_KEY) or --api-keys-file, or --host 127.0.0.1.",
        config.host,
        config.port,
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
