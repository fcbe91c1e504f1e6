"""The models that a dialect may look at while it reads a body, described only if it looks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import overload

from vectord.engine.client import EngineClient
from vectord.schema import ModelInfo


class Served(Sequence[ModelInfo]):
    """What the engine serves, the default model first, as it is at the first look. For one request."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine

    @cached_property
    def _models(self) -> Sequence[ModelInfo]:
        return self._engine.models().models

    def __len__(self) -> int:
        return len(self._models)

    @overload
    def __getitem__(self, place: int) -> ModelInfo: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[ModelInfo]: ...

    def __getitem__(self, place: int | slice) -> ModelInfo | Sequence[ModelInfo]:
        return self._models[place]
