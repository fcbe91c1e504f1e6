"""A start as far as its configuration, for these tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from vectord.config.sources import load
from vectord.errors import ConfigError

NOTHING: Mapping[str, str] = {}


def refused(argv: Sequence[str], environ: Mapping[str, str], cwd: Path, *, switches: Sequence[str] = ()) -> str:
    """The one line that stops the start."""
    with pytest.raises(ConfigError) as refusal:
        load(argv, environ, cwd, switches=switches)
    assert "\n" not in refusal.value.message
    return refusal.value.message
