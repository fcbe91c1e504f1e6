"""The Ray cluster: its environment, how a process joins it, and the options that serve.py and bulk.py share.

Ray reads the environment when it is imported, so both call `prepare` first.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from types import MappingProxyType, SimpleNamespace
from typing import Any

import click

from vectord.bulk.job import BulkFailed
from vectord.config.command_line import Command, value
from vectord.config.sources import CommandLine
from vectord.errors import ConfigError, ExitCode, StartError, installing

QUIET: Mapping[str, str] = MappingProxyType(
    {
        "RAY_USAGE_STATS_ENABLED": "0",  # or Ray sends statistics to its makers
        "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    }
)
# HAProxy sends requests to a replica's own HTTP server, without two Python processes between them. It retries on
# another replica if the connection breaks before the response: requests to vectord change nothing.
DIRECT: Mapping[str, str] = MappingProxyType(
    {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
        "RAY_SERVE_HAPROXY_RETRIES": "3",
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    }
)
# Ray kills a proxy after 3 such periods, and a proxy that starts on a busy machine would never finish.
PATIENT: Mapping[str, str] = MappingProxyType(
    {"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60", "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "30"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaOptions:
    """The number and size of replicas."""

    min_replicas: int = 1
    max_replicas: int = 1  # equal to min_replicas: a fixed number
    cpus: int = 1  # and threads, of a replica
    gpus: float = 0.0
    waiting_tokens: int = 50_000  # queued tokens in a replica that add another one: about 2 s of two cores
    upscale_delay_s: float = 10.0
    downscale_delay_s: float = 300.0


def check_ray() -> None:
    """Raises ConfigError if Ray is not installed."""
    if find_spec("ray") is None:
        raise ConfigError(f"Ray is not installed; run {installing('ray')}")


def prepare(settings: Mapping[str, str]) -> None:
    """Set environment variables that the operator has not set."""
    for name, text in settings.items():
        os.environ.setdefault(name, text)


def join(address: str | None, **options: Any) -> None:
    """Connect this process to the cluster at `address`, or start one on this machine that ends with this process."""
    import ray  # noqa: PLC0415 - not before `prepare`

    ray.init(address=address or "local", include_dashboard=None if address else False, log_to_driver=False, **options)


def cluster_parameters(actor: str) -> list[click.Parameter]:
    """--address, --cpus and --gpus. actor: the word for the process that gets the CPUs and GPUs."""
    return [
        value("--address", "HOST:PORT", "The cluster, or auto.  [default: a new one on this machine]"),
        value("--cpus", "N", f"CPUs of {actor}, and its threads.", kind=click.IntRange(min=1), default=1),
        value("--gpus", "N", f"GPUs of {actor}.", kind=float, default=0.0),
    ]


def read_words(command: Command, words: Sequence[str]) -> tuple[SimpleNamespace, CommandLine]:
    """The command's own options, and the settings and models. Raises ConfigError, or click's Exit after --help."""
    context = command.make_context(command.name, list(words))
    options = SimpleNamespace(**context.params)
    if not options.gpus >= 0:  # nan fails too
        raise ConfigError(f"--gpus: expected 0 or more, got {options.gpus:g}")
    return options, context.ensure_object(CommandLine)


def exit_code_of(run: Callable[[Sequence[str]], int], words: Sequence[str]) -> int:
    """The exit code of a command. Prints the error that ends it."""
    try:
        return run(words)
    except click.exceptions.Exit as done:
        return done.exit_code
    except StartError as problem:
        sys.stderr.write(f"vectord: {problem.message}\n")
        return ExitCode.BAD_START
    except BulkFailed as failed:
        sys.stderr.write(f"vectord: {failed}\n")
        return ExitCode.FAILED
