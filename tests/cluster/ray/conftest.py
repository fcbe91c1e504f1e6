"""Real clusters of Ray on this machine, with several nodes. These tests need .venv-ray (`make test-ray`)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port

# The main suite's environment has no Ray.
ENVIRONMENT = Path(sys.prefix).name
HAS_RAY = ENVIRONMENT == ".venv-ray"
collect_ignore_glob = [] if HAS_RAY else ["*_ray.py"]

OBJECT_STORE_BYTES = 100 * 2**20
ATTEMPTS = 3
# A node gives up if its agents do not report their ports within 15 s. On a busy machine they take longer.
AGENT_PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
ENVIRON = {
    "HF_HUB_OFFLINE": "1",
    "RAY_AUTH_MODE": "disabled",  # else a token is written into the home folder
    "RAY_enable_metrics_collection": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_DISABLE_MEMORY_MONITOR": "1",
    "RAY_memory_monitor_refresh_ms": "0",  # other programs use memory too
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore deprecation warnings from Ray and its pydantic."""
    for item in items:
        if item.path.name.endswith("_ray.py"):
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))


@contextmanager
def cluster(nodes: int, environ: dict[str, str]) -> Iterator[tuple[Any, list[Any]]]:
    """A head node without CPUs, and `nodes` with one CPU each."""
    os.environ |= ENVIRON | environ
    import ray

    made = head()
    try:
        workers = [made.add_node(**node(1)) for _ in range(nodes)]
        ray.init(address=made.address, log_to_driver=False, logging_level="warning")
        yield made, workers
    finally:
        ray.shutdown()
        made.shutdown()


def head() -> Any:
    """Retried: Ray gives its own processes a fixed time to start, which is too short on a busy machine."""
    from ray.cluster_utils import Cluster

    for _ in range(ATTEMPTS - 1):
        with suppress(Exception):  # it raises nothing narrower
            return Cluster(initialize_head=True, head_node_args=node(0) | {"include_dashboard": False})
    return Cluster(initialize_head=True, head_node_args=node(0) | {"include_dashboard": False})


def node(cpus: int) -> dict[str, Any]:
    """The arguments of a node."""
    ports = {name: free_port() for name in AGENT_PORTS}
    return {"num_cpus": cpus, "object_store_memory": OBJECT_STORE_BYTES, **ports}
