"""A configuration and its shape -> the Ray Serve application. Called by serve.py; starts nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from vectord.cluster.ray.replica import Replica
from vectord.cluster.ray.scaling import TokensWaiting
from vectord.cluster.ray.shape import Shape
from vectord.config import Config

NAME = "vectord"
# Beside the seconds that accepted requests get: for engine and process to end.
END_S = 5.0
# Work that waits is a matter of seconds; Ray's own 30 suit requests that last minutes.
LOOK_BACK_S = 20.0


def application(config: Config, shape: Shape) -> Any:
    """An application that `serve.run` takes. Every replica reads the models by itself, on its own machine."""
    deployment = serve.deployment(
        serve.ingress()(Replica),
        name=NAME,
        ray_actor_options={"num_cpus": shape.cpus, "num_gpus": shape.gpus},
        max_ongoing_requests=config.engine.max_concurrent_requests,
        graceful_shutdown_timeout_s=config.server.shutdown_timeout_secs + END_S,
        **_replicas(shape),
    )
    return deployment.bind(_of_a_replica(config, shape))


def _replicas(shape: Shape) -> dict[str, Any]:
    if shape.min_replicas == shape.max_replicas:
        return {"num_replicas": shape.max_replicas}
    policy = AutoscalingPolicy(
        policy_function=TokensWaiting, policy_kwargs={"tokens_per_replica": shape.waiting_tokens}
    )
    scaling = AutoscalingConfig(
        min_replicas=shape.min_replicas,
        max_replicas=shape.max_replicas,
        look_back_period_s=LOOK_BACK_S,
        upscale_delay_s=shape.upscale_delay_s,
        downscale_delay_s=shape.downscale_delay_s,
        policy=policy,
    )
    return {"autoscaling_config": scaling}


def _of_a_replica(config: Config, shape: Shape) -> Config:
    """Of its share of the machine; without ports of its own, which replicas on one machine would fight for."""
    device = replace(config.device, num_threads=config.device.num_threads or shape.cpus)
    server = replace(config.server, grpc_port=None, prometheus_port=None, front_ends=1)
    return replace(config, device=device, server=server)
