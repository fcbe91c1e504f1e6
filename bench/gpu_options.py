"""What bench/gpu.py tells each section: one JSON object as the argument. Standard library only."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    device: str  # cuda, cuda:N or cpu
    quick: bool
    folder: str  # of models
    seconds: float  # the section may take
    models: tuple[str, ...] = ()  # the section is about

    @property
    def round_s(self) -> float:
        """Of one measured round, of which there are ROUNDS."""
        return 0.1 if self.quick else 1.0

    @property
    def models_folder(self) -> Path:
        return Path(self.folder)

    def about(self, *models: str) -> Options:
        return replace(self, models=models)

    def argument(self) -> str:
        return json.dumps(asdict(self))


ROUNDS = 3


def read_options() -> Options:
    told = json.loads(sys.argv[-1])
    return Options(**told | {"models": tuple(told["models"])})
