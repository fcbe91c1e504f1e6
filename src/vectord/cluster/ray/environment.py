"""What Ray's processes find in their environment, and the cluster itself: joined, or made of this machine.

Called by serve.py and bulk.py before anything of Ray is imported, which reads the environment then.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

from vectord.errors import ConfigError

QUIET: Mapping[str, str] = MappingProxyType(
    {
        "RAY_USAGE_STATS_ENABLED": "0",  # Ray would tell its makers of this cluster
        "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    }
)
# Requests go through HAProxy to a replica's own HTTP server instead of through two Python processes. What breaks
# before an answer began is asked of another replica: nothing that vectord is asked changes anything.
DIRECT: Mapping[str, str] = MappingProxyType(
    {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
        "RAY_SERVE_HAPROXY_RETRIES": "3",
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    }
)
# A proxy that takes long to start on a busy machine is killed after 3 of these, and starts again, as long.
PATIENT: Mapping[str, str] = MappingProxyType(
    {"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60", "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "30"}
)


def check_ray() -> None:
    """Raises ConfigError where Ray is not installed."""
    if find_spec("ray") is None:
        raise ConfigError("Ray is not installed here; it comes with pip install 'vectord[ray]'")


def prepare(settings: Mapping[str, str]) -> None:
    """Put `settings` into this process's environment, where the operator says nothing else."""
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def join(address: str | None, **options: Any) -> None:
    """Connect this process to the cluster at `address`; None: to one of this machine alone, which ends with it."""
    import ray  # noqa: PLC0415 - not before `prepare`

    ray.init(address=address or "local", include_dashboard=None if address else False, log_to_driver=False, **options)
