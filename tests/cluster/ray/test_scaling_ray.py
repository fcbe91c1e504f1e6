"""The number of replicas follows the load, on a real cluster of two nodes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import httpx
import pytest
from tests.cluster.ray.conftest import cluster
from tests.ports import free_port

from vectord.cluster.ray.cluster import PATIENT, QUIET, ReplicaOptions
from vectord.config import Config, EngineConfig, ServerConfig

PATIENCE_S = 240.0


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Of the proxies of a cluster without an application."""
    found = free_port()
    with cluster(2, {**QUIET, **PATIENT}):
        from ray import serve

        from vectord.cluster.serve import start

        start(serve, replace(Config(), server=replace(ServerConfig(), port=found)), everywhere=False)
        yield found
        serve.shutdown()


@contextmanager
def served(port: int, config: Config, shape: ReplicaOptions) -> Iterator[str]:
    """The URL of an application with these options."""
    from ray import serve

    from vectord.cluster.ray.replica import NAME, application

    config = replace(config, server=replace(ServerConfig(), port=port))
    serve.run(application(config, shape), name=NAME, route_prefix="/")
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        serve.delete(NAME)


def running_replicas() -> int:
    from ray import serve

    from vectord.cluster.ray.replica import NAME

    (deployment,) = serve.status().applications[NAME].deployments.values()
    return deployment.replica_states.get("RUNNING", 0)


def wait_for(probe: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not probe():
        assert time.monotonic() < deadline_s
        time.sleep(0.2)


def test_the_number_of_replicas_follows_the_load(port: int) -> None:
    """A busy replica gets a second one, which ends when there is no load; every call is answered."""
    config = replace(Config(), engine=replace(EngineConfig(), cache_bytes=0))
    shape = ReplicaOptions(
        min_replicas=1, max_replicas=2, waiting_tokens=500, upscale_delay_s=1.0, downscale_delay_s=2.0
    )
    with served(port, config, shape) as url:
        assert running_replicas() == 1
        statuses: list[int] = []
        over = threading.Event()

        def ask() -> None:
            texts = [f"number {i} " + "word " * 50 for i in range(32)]
            while not over.is_set():
                statuses.append(httpx.post(f"{url}/v1/embeddings", json={"input": texts}, timeout=120).status_code)

        threads = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            wait_for(lambda: running_replicas() == 2)
        finally:
            over.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert set(statuses) == {200}
        wait_for(lambda: running_replicas() == 1)
        assert httpx.post(f"{url}/v1/embeddings", json={"input": "still here"}, timeout=60).status_code == 200
