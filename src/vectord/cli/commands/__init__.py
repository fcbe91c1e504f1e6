"""One module for each command of `vectord`, with a click command called `command`. The folder is the registry.

A command imports the packages that it needs when it runs, so that `vectord --help` is fast.
"""

from __future__ import annotations

import os
from pathlib import Path

import click

from vectord.config.command_line import flag, value
from vectord.config.sources import CommandLine, Loaded, load
from vectord.products.common.profiles import profiles


def profile_names() -> list[str]:
    return list(profiles())


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


JSON = flag("--json", "as_json", help="Print JSON.")
