"""A configuration -> the Ray Serve application. Called by serve.py; starts nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from vectord.cluster.ray.cluster import ReplicaOptions
from vectord.cluster.ray.replica import Replica
from vectord.cluster.ray.scaling import WaitingTokensPolicy
from vectord.config import Config

NAME = "vectord"
END_S = 5.0  # for the end of the process, after the time for accepted requests
LOOK_BACK_S = 20.0  # Ray's default of 30 suits requests that last minutes


def application(config: Config, options: ReplicaOptions) -> Any:
    """An application for `serve.run`. Every replica loads the models on its own machine."""
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
