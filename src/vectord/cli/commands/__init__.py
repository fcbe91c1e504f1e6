"""One module for each command of `vectord`, with a click command called `command`. The folder is the registry.

A command imports the packages that it needs when it runs, so that `vectord --help` is fast.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vectord.config.command_line import Command, flag, value
from vectord.config.sources import CommandLine, Loaded, load
from vectord.errors import ConfigError
from vectord.products.common.profiles import profiles

if TYPE_CHECKING:
    from vectord.tools.probe import ProbedServer


def profile_names() -> list[str]:
    return list(profiles())


command_with_settings = partial(click.command, cls=Command, settings=True, profiles=profile_names)


def load_settings(line: CommandLine) -> Loaded:
    """The settings of this process, from all sources."""
    return load(line, os.environ, Path.cwd(), profiles())


def server_options(least_timeout_s: float, token: str) -> list[click.Parameter]:
    """The options of a command that sends requests to a running server."""
    seconds = click.FloatRange(least_timeout_s, 3600)
    limit = "" if least_timeout_s else "; 0: no limit"
    return [
        value("--url", "URL", "The server.", default="http://localhost:8000"),
        value("--token", "KEY", token, env=["API_TOKEN", "VECTORD_API_KEY"]),
        value("--model", "NAME", "Model to request.  [default: the first that the server lists]"),
        value("--timeout", "S", f"Seconds for a request{limit}.", kind=seconds, default=60.0),
    ]


@contextmanager
def server_here(
    line: CommandLine, url: str | None, token: str | None, timeout_s: float, *, further: Sequence[str] = ()
) -> Iterator[ProbedServer]:
    """The server at `url`, or one of this machine with the settings and models of the command line, until the end.

    further: options of that server.
    """
    from vectord.tools.probe import ProbedServer, check_url  # noqa: PLC0415 - httpx

    if url is not None:
        if line.words:
            raise ConfigError(f"--url: the server has its own settings; leave out {line.words[0]}")
        with ProbedServer(check_url(url, "--url"), token, timeout_s) as server:
            yield server
        return
    from vectord.tools.doctor.against import own_server  # noqa: PLC0415

    config = load_settings(line).config  # reports a bad setting before a process starts
    with own_server([*line.words, *further], config.server.api_key, timeout_s) as server:
        yield server


JSON = flag("--json", "as_json", help="Print JSON.")
