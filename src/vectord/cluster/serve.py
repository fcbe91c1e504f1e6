"""`python -m vectord.cluster.serve` and `serve run vectord.cluster.serve:app`: vectord on many machines.

Accepts the options of `vectord serve`, and options for replicas. Blocks until SIGINT or SIGTERM.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from vectord.cluster.processes.start import on_first_signal
from vectord.cluster.ray.cluster import (
    DIRECT,
    PATIENT,
    QUIET,
    ReplicaOptions,
    check_ray,
    cluster_parameters,
    exit_code_of,
    join,
    prepare,
    read_words,
)
from vectord.config.command_line import Command, value
from vectord.config.sources import CommandLine, Loaded, load
from vectord.errors import ConfigError, StartError
from vectord.products.common.profiles import profiles

if TYPE_CHECKING:
    from vectord.config import Config

LOGS = "/tmp/ray/session_latest/logs/serve on each node"  # noqa: S108 - where Ray writes them

HELP = """\
Serve models by replicas of vectord on a Ray cluster, behind one port. Each replica is a server; MODELs and the options
of `vectord serve` configure it.

\b
Examples:
  python -m vectord.cluster.serve --num-replicas 2
  python -m vectord.cluster.serve --address auto --min-replicas 2 --max-replicas 8 --cpus 4 --host 0.0.0.0 BAAI/bge-m3
  serve run vectord.cluster.serve:app num_replicas=2 models=BAAI/bge-m3"""


def run(words: Sequence[str]) -> int:
    """Serve until a signal. Raises StartError."""
    options, line = read_words(COMMAND, words)
    check_ray()
    loaded = _load(line)
    prepare({**QUIET, **PATIENT, **DIRECT})
    join(options.address)
    import ray  # noqa: PLC0415 - after `prepare`, as all of Ray
    from ray import serve  # noqa: PLC0415

    from vectord.cluster.ray.replica import NAME, application  # noqa: PLC0415

    ended = threading.Event()
    on_first_signal(ended.set)
    try:
        start(serve, loaded.config, everywhere=options.proxies == "every")
        try:
            serve.run(application(loaded.config, replica_options(options)), name=NAME, route_prefix="/")
        except RuntimeError as problem:
            raise StartError(f"no replica started: {problem} Their logs are in {LOGS}") from problem
        server = loaded.config.server
        sys.stderr.write(f"vectord: ready on http://{server.host}:{server.port}\n")
        ended.wait()
        serve.delete(NAME)
    finally:
        ray.shutdown()
    return 0


def start(serve: Any, config: Config, *, everywhere: bool) -> None:
    """Start Ray's proxies at the address of `config`: on every node with a replica, or only on the head node."""
    serve.start(
        proxy_location="EveryNode" if everywhere else "HeadOnly",
        http_options={"host": config.server.host, "port": config.server.port},
    )


def app(arguments: Mapping[str, str]) -> Any:
    """The application of `serve run vectord.cluster.serve:app name=value ...`.

    The names are those of options, and `models`. The cluster determines where the proxies listen. Raises StartError.
    """
    prepare(QUIET)
    words = [f"--{name.replace('_', '-')}={value}" for name, value in arguments.items() if name != "models"]
    words += arguments.get("models", "").replace(",", " ").split()
    options, line = read_words(COMMAND, words)
    from vectord.cluster.ray.replica import application  # noqa: PLC0415 - after `prepare`

    return application(_load(line).config, replica_options(options))


def replica_options(options: SimpleNamespace) -> ReplicaOptions:
    """Raises ConfigError."""
    least = options.min_replicas if options.min_replicas is not None else options.num_replicas
    most = options.max_replicas if options.max_replicas is not None else max(least, options.num_replicas)
    if not 1 <= least <= most:
        raise ConfigError(f"--min-replicas {least}, --max-replicas {most}: expected 1 <= min <= max")
    return ReplicaOptions(
        min_replicas=least,
        max_replicas=most,
        cpus=options.cpus,
        gpus=options.gpus,
        waiting_tokens=options.waiting_tokens,
        upscale_delay_s=options.upscale_delay_s,
        downscale_delay_s=options.downscale_delay_s,
    )


COMMAND = Command(
    "python -m vectord.cluster.serve",
    settings=True,
    profiles=lambda: list(profiles()),
    help=HELP,
    params=[
        *cluster_parameters("a replica"),
        value("--num-replicas", "N", "Number of replicas, if it is fixed.", kind=int, default=1),
        value("--min-replicas", "N", "Fewest replicas, if their number follows the load.", kind=int),
        value("--max-replicas", "N", "Most replicas, if their number follows the load.", kind=int),
        value(
            "--waiting-tokens",
            "N",
            "Queued tokens in a replica that add another one.",
            kind=click.IntRange(min=1),
            default=50_000,
        ),
        value("--upscale-delay-s", "S", "Seconds of load before a replica is added.", kind=float, default=10.0),
        value("--downscale-delay-s", "S", "Seconds without load before a replica goes.", kind=float, default=300.0),
        value("--proxies", "", "Nodes that listen.", kind=click.Choice(("every", "head")), default="every"),
    ],
)


def _load(line: CommandLine) -> Loaded:
    from vectord.observability import logs  # noqa: PLC0415

    loaded = load(line, os.environ, Path.cwd(), profiles())
    logs.configure(loaded.config.telemetry)
    loaded.log_notes()
    return loaded


if __name__ == "__main__":
    sys.exit(exit_code_of(run, sys.argv[1:]))
