"""The options that `python -m vectord.cluster.serve` and `python -m vectord.cluster.bulk` share."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import click

from vectord.config.command_line import Command, value
from vectord.config.sources import CommandLine
from vectord.errors import ConfigError


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
