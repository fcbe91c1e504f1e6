"""The options of a section of bench/gpu.py: one JSON object as its argument. Standard library only."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    device: str  # cuda, cuda:N or cpu
    quick: bool
    folder: str  # with the models
    seconds: float  # time limit of the section
    models: tuple[str, ...] = ()  # in this section
    dtype: str = "auto"
    plain: bool = False  # without the fused kernels

    @property
    def round_s(self) -> float:
        """Seconds of a measured round; there are ROUNDS of them."""
        return 0.1 if self.quick else 1.0

    @property
    def models_folder(self) -> Path:
        return Path(self.folder)

    def how(self, way: str) -> str:
        """A way to compute, as findings name it."""
        kernels = ", without fused kernels" if self.plain else ""
        return way + kernels + ("" if self.dtype == "auto" else f", {self.dtype}")

    def argument(self) -> str:
        return json.dumps(asdict(self))


ROUNDS = 3


def read_options() -> Options:
    given = json.loads(sys.argv[-1])
    return Options(**given | {"models": tuple(given["models"])})
