"""Models opened for the tests of vectord.engine.models, computed by the fake backend: no file of weights is read."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.models import MINILM

from vectord.config import Config, DeviceConfig, ModelConfig
from vectord.engine.models import open_models
from vectord.engine.models.registry import ModelSource

FAKE = DeviceConfig(backend="fake")


def opened(*names: str, **model: Any) -> list[ModelSource]:
    """model: further entries of ModelConfig."""
    return open_models(Config(model=ModelConfig(models=names, **model), device=FAKE))


def minilm_folder(folder: Path) -> Path:
    """A folder with the default model's files, which a test may spoil."""
    return Path(shutil.copytree(MINILM, folder))
