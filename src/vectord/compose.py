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
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

from starlette.applications import Starlette

from vectord import __version__
from vectord.config import Config, ServerConfig
from vectord.dialects.folder import load_dialects
from vectord.engine.engine import Engine
from vectord.models import open_models, read_composites
from vectord.processor import thread_budget
from vectord.server.app import create_app
from vectord.telemetry import logs
from vectord.telemetry.metrics import Metrics

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
    models = open_models(config)
    composites = read_composites(config.model.composites, models)
    metrics = Metrics(__version__) if config.telemetry.enable_metrics else None
    workers = config.engine.tokenization_workers or config.device.num_threads or thread_budget()
    engine = Engine(
        models,
        replace(config.engine, tokenization_workers=workers),
        max_batch_requests=config.device.max_batch_requests,
        observer=metrics,
        composites=composites,
    )

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        await engine.start()
        watch = asyncio.create_task(_stop_if_nothing_loads(engine, app))
        try:
            yield
        finally:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch
            await engine.close()

    app = create_app(engine, dialects, config.server, metrics, lifespan)
    return Composition(app, engine)


def serve(config: Config) -> int:
    """Serve until told to stop. Returns the exit code: 0, or 1 if no model could be loaded. Raises StartError."""
    from vectord.server import run  # noqa: PLC0415 - uvicorn, which an app under another server does not need

    logs.configure(config.telemetry)
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


async def _stop_if_nothing_loads(engine: Engine, app: Starlette) -> None:
    await engine.loaded.wait()
    if _nothing_loaded(engine):
        log.error("no model could be loaded: stopping")
        app.state.shutdown.begin()


def _nothing_loaded(engine: Engine) -> bool:
    return set(engine.readiness().values()) == {"failed"}


def _warn_if_open(config: ServerConfig) -> None:
    if config.api_key or _is_loopback(config.host):
        return
    log.warning(
        "ANYONE who can reach %s port %d may use this server: it listens beyond this machine without a key. "
        "Set --api-key (API_KEY), or --host 127.0.0.1.",
        config.host,
        config.port,
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
