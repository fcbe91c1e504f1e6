"""Read a model's folder and return its spec, or the message of its refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vectord.checkpoints.reader import read_spec
from vectord.checkpoints.spec import Located, ModelSpec
from vectord.errors import StartError


def located(folder: Path, *, name: str = "tests/tiny") -> Located:
    return Located(folder=folder, model_id=name, revision=None, source="folder")


def spec_of(folder: Path, *, name: str = "tests/tiny", **options: Any) -> ModelSpec:
    return read_spec(located(folder, name=name), **options)


def refusal(folder: Path, *, name: str = "tests/tiny", **options: Any) -> str:
    """Return the message of the error that reading the folder raises."""
    with pytest.raises(StartError) as caught:
        read_spec(located(folder, name=name), **options)
    return caught.value.message
