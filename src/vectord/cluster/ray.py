"""Ray Serve and Ray Data. Placement, scaling, retries and resuming are Ray's; docs/scaling.md shows their use.

    app    `serve run vectord.cluster.ray:app models=BAAI/bge-m3`: replicas of the whole server
    Embed  `dataset.map_batches(Embed, batch_format="pyarrow", ...)`: adds the vectors of a column of texts

Ray, an extra, is imported when they are used.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vectord import compose
from vectord.compute.processor import prepare_process
from vectord.config import Config
from vectord.config.command_line import Command
from vectord.config.sources import CommandLine, load
from vectord.errors import ConfigError
from vectord.library.embedder import Embedder
from vectord.observability import logs
from vectord.products.common.models import ready_models
from vectord.products.common.profiles import profiles

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.types import ASGIApp

NAME = "vectord"
END_S = 5.0  # for the end of a replica, after the time for its accepted requests


class NotReady(Exception):
    """No model is ready. Ray replaces such a replica."""


def app(settings: Mapping[str, str]) -> Any:
    """`application` for Ray's configuration files, which have the deployment's options."""
    return application(settings)


def application(settings: Mapping[str, str], **options: Any) -> Any:
    """An application for `serve.run`; every replica is a server with its own engine.

    settings: options of `vectord serve` by name, such as {"dtype": "float32"}, and `models` with commas; they are read
    together with the environment and the files of this process. options: of Ray's deployment, such as num_replicas. A
    replica has as many threads as CPUs.
    """
    words = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items() if name != "models"]
    models = settings.get("models", "").replace(",", " ").split()
    command = Command("vectord.cluster.ray:app", settings=True, profiles=profiles)
    line = command.make_context(command.name, [*words, *models]).ensure_object(CommandLine)
    loaded = load(line, os.environ, Path.cwd(), profiles())
    loaded.log_notes()
    loaded.check_keys()
    config = loaded.config
    if config.server.batch_dir is not None:
        raise ConfigError("batch_dir: files and batches need a single process, and replicas are several")
    from ray import serve  # noqa: PLC0415 - an extra

    given = {
        "name": NAME,
        "max_ongoing_requests": config.engine.max_concurrent_requests,
        "graceful_shutdown_timeout_s": config.server.shutdown_timeout_secs + END_S,
    }
    # Replicas on one machine cannot share further ports.
    server = replace(config.server, grpc_port=None, prometheus_port=None, front_ends=1)
    return serve.deployment(serve.ingress()(Replica), **(given | options)).bind(replace(config, server=server))


class Replica:
    """One server in an actor of Ray Serve, which calls the methods on the event loop of the app."""

    def __init__(self, config: Config) -> None:
        self._config = replace(config, device=replace(config.device, num_threads=config.device.num_threads or _cpus()))
        self._composed: compose.Composition

    def __serve_build_asgi_app__(self) -> ASGIApp:  # called by Ray
        logs.configure(self._config.telemetry)
        prepare_process()
        self._composed = compose.build(self._config)
        app, engine = self._composed.app, self._composed.engine
        start = app.router.lifespan_context

        @asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            async with start(app):
                await engine.loaded.wait()  # Ray sends requests as soon as the app has started
                if compose.exit_code(engine):
                    raise NotReady("no model could be loaded; see the replica's log")
                yield
                app.state.shutdown.begin()
                await engine.drain()

        app.router.lifespan_context = lifespan
        return app

    async def check_health(self) -> None:
        """Called by Ray. Raises NotReady."""
        if not ready_models(self._composed.engine.models()):
            raise NotReady(f"no model is ready: {self._composed.engine.readiness()}")


class Embed:
    """For `Dataset.map_batches` with batch_format="pyarrow": an Embedder in each actor."""

    def __init__(
        self,
        models: str | Sequence[str] = (),
        *,
        column: str = "text",
        prefix: str = "",
        options: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        """models, settings: of `vectord.Embedder`; threads: by default the CPUs of the actor. options: of its method
        `embed`. prefix: of the added columns."""
        self._column, self._prefix = column, prefix
        self._options: dict[str, Any] = {"outputs": ("dense",), **(options or {})}
        self._embedder = Embedder(models, **{**settings, "threads": settings.get("threads") or _cpus()})

    def __call__(self, table: Any) -> Any:
        """The table with the columns dense, sparse and colbert, as the options request them: see docs/bulk.md."""
        import numpy as np  # noqa: PLC0415
        import pyarrow as pa  # noqa: PLC0415 - an extra

        from vectord.bulk.arrow_output import sparse_column, token_vectors_column  # noqa: PLC0415

        if not isinstance(table, pa.Table):
            raise TypeError('Embed needs map_batches(..., batch_format="pyarrow")')
        texts = table[self._column].to_pylist()
        if not texts:
            return table
        found = self._embedder.embed(texts, show_progress=False, **self._options)
        for kind in self._options["outputs"]:
            vectors: Any = found if isinstance(found, np.ndarray) else getattr(found, kind)
            if kind == "dense":
                column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
            elif kind == "sparse":
                column = sparse_column(vectors)
            else:
                column = token_vectors_column(vectors, vectors[0].shape[1])
            table = table.append_column(self._prefix + kind, column)
        return table


def _cpus() -> int | None:
    from ray import get_runtime_context  # noqa: PLC0415 - an extra

    return int(get_runtime_context().get_assigned_resources().get("CPU", 0)) or None
