"""Loads settings from a command line, an environment and a folder, for these tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from vectord.config import sources
from vectord.config.command_line import read_command_line
from vectord.config.sources import Loaded
from vectord.errors import ConfigError
from vectord.products.common.profiles import profiles

NOTHING: Mapping[str, str] = {}


def load(words: Sequence[str], environ: Mapping[str, str], cwd: Path) -> Loaded:
    return sources.load(read_command_line(words), environ, cwd, profiles())


def refused(words: Sequence[str], environ: Mapping[str, str], cwd: Path) -> str:
    """The one line of a start that fails."""
    with pytest.raises(ConfigError) as refusal:
        load(words, environ, cwd)
    assert "\n" not in refusal.value.message
    return refusal.value.message
