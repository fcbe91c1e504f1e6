"""A configuration -> the Ray Serve application, whose replicas are the whole app with its own engine, each in an actor.

Called by serve.py; starts nothing. Ray calls the methods of a replica on the event loop of its app.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from starlette.applications import Starlette
from starlette.types import ASGIApp

from vectord import compose
from vectord.cluster.ray.cluster import ReplicaOptions
from vectord.cluster.ray.scaling import BUSY, WAITING_TOKENS, WaitingTokensPolicy
from vectord.config import Config
from vectord.engine.events import BatchRan, Event, Observer
from vectord.observability import logs
from vectord.observability.instruments import BusyShare
from vectord.products.common.models import ready_models

NAME = "vectord"
END_S = 5.0  # for the end of the process, after the time for accepted requests
LOOK_BACK_S = 20.0  # Ray's default of 30 suits requests that last minutes


class NotReady(Exception):
    """No model is ready. Ray replaces such a replica."""


class Replica:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._busy = BusyShare()
        self._composed: compose.Composition

    def __serve_build_asgi_app__(self) -> ASGIApp:  # called by Ray
        logs.configure(self._config.telemetry)
        compose.prepare_process()
        self._composed = compose.build(self._config, self._watching)
        app = self._composed.app
        _wait_for_models(app, self._composed)
        return app

    def _watching(self, then: Observer) -> Observer:
        def observe(event: Event) -> None:
            if isinstance(event, BatchRan):
                self._busy.add(event.seconds / event.streams)
            then(event)

        return observe

    async def check_health(self) -> None:
        """Raises NotReady. Called by Ray, as the next method."""
        if not ready_models(self._composed.engine.models()):
            raise NotReady(f"no model is ready: {self._composed.engine.readiness()}")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        queued = self._composed.engine.gauges().queued_tokens
        return {WAITING_TOKENS: float(sum(queued.values())), BUSY: self._busy.share()}


def _wait_for_models(app: Starlette, composed: compose.Composition) -> None:
    """Delay the start of the app until its models have loaded: Ray sends requests from then on."""
    start = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with start(app):
            await composed.engine.loaded.wait()
            if compose.exit_code(composed.engine):
                raise NotReady("no model could be loaded; see the replica's log")
            yield
            app.state.shutdown.begin()
            await composed.engine.drain()

    app.router.lifespan_context = lifespan


def application(config: Config, options: ReplicaOptions) -> Any:
    """An application for `serve.run`. Every replica loads the models on its own machine."""
    from ray import serve  # noqa: PLC0415 - an extra

    # Replicas on one machine cannot share further ports.
    server = replace(config.server, grpc_port=None, prometheus_port=None, front_ends=1)
    device = replace(config.device, num_threads=config.device.num_threads or options.cpus)
    deployment = serve.deployment(
        serve.ingress()(Replica),
        name=NAME,
        ray_actor_options={"num_cpus": options.cpus, "num_gpus": options.gpus},
        max_ongoing_requests=config.engine.max_concurrent_requests,
        graceful_shutdown_timeout_s=config.server.shutdown_timeout_secs + END_S,
        **_replicas(options),
    )
    return deployment.bind(replace(config, device=device, server=server))


def _replicas(options: ReplicaOptions) -> dict[str, Any]:
    if options.min_replicas == options.max_replicas:
        return {"num_replicas": options.max_replicas}
    from ray.serve.config import AutoscalingConfig, AutoscalingPolicy  # noqa: PLC0415

    policy = AutoscalingPolicy(
        policy_function=WaitingTokensPolicy, policy_kwargs={"tokens_per_replica": options.waiting_tokens}
    )
    scaling = AutoscalingConfig(
        min_replicas=options.min_replicas,
        max_replicas=options.max_replicas,
        look_back_period_s=LOOK_BACK_S,
        upscale_delay_s=options.upscale_delay_s,
        downscale_delay_s=options.downscale_delay_s,
        policy=policy,
    )
    return {"autoscaling_config": scaling}
