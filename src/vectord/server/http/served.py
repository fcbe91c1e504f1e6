"""The models that a dialect may look at while it reads a body, described only if it looks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import overload

from vectord.engine.client import EngineClient
from vectord.schema import ANYONE, Caller, ModelInfo


class Served(Sequence[ModelInfo]):
    """What the engine serves to this caller, the default model first, as it is at the first look. For one request."""

    def __init__(self, engine: EngineClient, caller: Caller = ANYONE) -> None:
        self._engine = engine
        self._caller = caller

    @cached_property
    def _models(self) -> Sequence[ModelInfo]:
        return self._engine.models(self._caller).models

    def look(self) -> None:
        """Look now: on the event loop, for a reader on another thread."""
        len(self)

    def __len__(self) -> int:
        return len(self._models)

    @overload
    def __getitem__(self, place: int) -> ModelInfo: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[ModelInfo]: ...

    def __getitem__(self, place: int | slice) -> ModelInfo | Sequence[ModelInfo]:
        return self._models[place]
