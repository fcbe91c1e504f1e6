"""Config -> models, engine, app: the file that knows every part. Called by cli.py and asgi.py, once a process.

What can be wrong with a configuration is found before the port is bound (StartError). What takes long, loading and
compiling, goes on behind the open port.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec

from starlette.applications import Starlette

from vectord import __version__
from vectord.config import Config, EngineConfig, ModelConfig, ServerConfig
from vectord.dialects.folder import load_dialects
from vectord.engine.engine import Engine
from vectord.errors import ConfigError
from vectord.models import open_composites, open_models
from vectord.processor import thread_budget
from vectord.server.app import create_app
from vectord.server.gate import Gate
from vectord.server.tls import certificate_of
from vectord.stores.redis import RedisStore
from vectord.telemetry import logs
from vectord.telemetry.metrics import Metrics
from vectord.telemetry.tracing import open_tracing

log = logging.getLogger("vectord")

EXIT_NOTHING_SERVED = 1


@dataclass(frozen=True, slots=True)
class Composition:
    app: Starlette  # its lifespan starts and closes the engine
    engine: Engine


def build(config: Config) -> Composition:
    """The app of this configuration, nothing running yet.

    May block for a download. Raises StartError: a model that is nowhere, an unknown backend or dialect.
    """
    dialects = load_dialects(config.server.dialects)
    if config.server.grpc_port is not None and find_spec("grpc") is None:
        raise ConfigError("grpc_port: grpc is not installed here; it comes with pip install 'vectord[grpc]'")
    if config.server.redis_url is not None and find_spec("redis") is None:
        raise ConfigError("redis_url: redis is not installed here; it comes with pip install 'vectord[redis]'")
    if config.engine.shared_cache is not None and find_spec("redis") is None:
        raise ConfigError("shared_cache: redis is not installed here; it comes with pip install 'vectord[redis]'")
    gate = Gate(config.server, dialects)
    models = open_models(config)
    composites = open_composites(config.model, models)
    metrics = Metrics(__version__, _max_lengths(config.model)) if config.telemetry.enable_metrics else None
    tracing = open_tracing(config.telemetry, __version__)
    threads = min(config.device.num_threads or thread_budget(), thread_budget())
    workers = config.engine.tokenization_workers or threads
    engine = Engine(
        models,
        replace(config.engine, tokenization_workers=workers),
        max_batch_requests=config.device.max_batch_requests,
        observer=metrics,
        composites=composites,
        store=_store(config.engine),
    )

    if metrics is not None:
        metrics.watch(engine.gauges, lambda: engine.models().models)

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        _tell_settings(config)
        await engine.start()
        watch = asyncio.create_task(_stop_if_nothing_loads(engine, app))
        try:
            async with _further_ports(engine, config.server, app):
                yield
        finally:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch
            await engine.close()
            if tracing is not None:
                await tracing.close(config.server.shutdown_timeout_secs)

    app = create_app(engine, dialects, config.server, metrics, lifespan, gate, tracing)
    return Composition(app, engine)


def serve(config: Config) -> int:
    """Serve until told to stop. Returns the exit code: 0, or 1 if no model could be loaded. Raises StartError."""
    from vectord.server import run  # noqa: PLC0415 - uvicorn, which an app under another server does not need

    logs.configure(config.telemetry)
    if config.server.grpc_port:  # bound by the app's lifespan, where a taken port would be a traceback
        run.bind(config.server.host, config.server.grpc_port, option="--grpc-port").close()
    certificate_of(config.server)  # again when it is used; what is wrong with it must not wait for models
    _run_without_preempting()
    composed = build(config)
    _warn_if_open(config.server)
    run.serve(composed.app, config.server)
    return EXIT_NOTHING_SERVED if _nothing_loaded(composed.engine) else 0


def _run_without_preempting() -> None:
    """Linux: let this process's threads wait for their turn instead of interrupting each other when they wake.

    Every answer wakes the event loop, which then takes a core from a forward in the middle of its caches. On 2 cores
    with 32 clients: 25.8 k tokens/s without, 26.7 k with; a lone query takes as long either way.
    """
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):  # a sandbox may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # threads made from here on inherit it


@asynccontextmanager
async def _further_ports(engine: Engine, config: ServerConfig, app: Starlette) -> AsyncIterator[None]:
    """What listens beside HTTP. When the block ends, the engine has drained."""
    async with AsyncExitStack() as ports:
        if config.grpc_port is not None:
            from vectord.rpc.server import serve_grpc  # noqa: PLC0415 - grpc, an extra, which takes 100 ms

            await ports.enter_async_context(serve_grpc(engine, config, app.state.shutdown, app.state.gate))
        yield


async def _stop_if_nothing_loads(engine: Engine, app: Starlette) -> None:
    await engine.loaded.wait()
    if _nothing_loaded(engine):
        log.error("no model could be loaded: stopping")
        app.state.shutdown.begin()
        return
    # The words that scripts wait for: those of Smart Embedder's users, and of text-embeddings-inference's.
    if any(model.reranks and model.state == "ready" for model in engine.models().models):
        log.info("Reranker ready.")
    log.info("Server ready to accept requests")
    log.info("Ready")


def _tell_settings(config: Config) -> None:
    """What this process was started as, in one line; its name is Simple Inference Server's."""
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


def _max_lengths(config: ModelConfig) -> dict[str, int]:
    """What embedding_server_info says, by Smart Embedder's names; its own defaults where nobody says anything."""
    return {
        "bge_embed_max_length": config.bge_embed_max_length or 8192,
        "qwen_embed_max_length": config.qwen_embed_max_length or 32_768,
        "bge_rerank_max_length": config.bge_rerank_max_length or 8192,
        "qwen_rerank_max_length": config.qwen_rerank_max_length or 32_768,
    }


def _nothing_loaded(engine: Engine) -> bool:
    return set(engine.readiness().values()) == {"failed"}


def _warn_if_open(config: ServerConfig) -> None:
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
