"""A fixture of the tests that write a model's folder."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The place of a model's folder, which does not exist yet."""
    return tmp_path / "model"
