"""One module for each command of `vectord`, with a click command called `command`. The folder is the registry.

A command imports the packages that it needs when it runs, so that `vectord --help` is fast.
"""

from __future__ import annotations

import os
from pathlib import Path

from vectord.config.sources import CommandLine, Loaded, load
from vectord.products.common.profiles import profiles


def profile_names() -> list[str]:
    return list(profiles())


def load_settings(line: CommandLine) -> Loaded:
    """The settings of this process, from all sources."""
    return load(line, os.environ, Path.cwd(), profiles())
