"""Loads settings from a command line, an environment and a folder, for these tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from vectord.config import sources
from vectord.config.command_line import Command
from vectord.config.sources import CommandLine, Loaded
from vectord.errors import ConfigError
from vectord.products.common.profiles import profiles

NOTHING: Mapping[str, str] = {}
COMMAND = Command(None, settings=True, profiles=profiles, add_help_option=False)


def load(words: Sequence[str], environ: Mapping[str, str], cwd: Path) -> Loaded:
    line = COMMAND.make_context("vectord", list(words)).ensure_object(CommandLine)
    return sources.load(line, environ, cwd, profiles())


def refused(words: Sequence[str], environ: Mapping[str, str], cwd: Path) -> str:
    """The one line of a start that fails."""
    with pytest.raises(ConfigError) as refusal:
        load(words, environ, cwd)
    assert "\n" not in refusal.value.message
    return refusal.value.message
