"""An Observer that also tells when a model has changed, so that the front-ends hear of it. Lives on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

from vectord.engine.observer import Observer, Passing, Silent


class Announcing(Passing):
    def __init__(self) -> None:
        super().__init__(Silent())
        self.announce: Callable[[], None] = lambda: None  # the server's, once there is one

    def over(self, then: Observer) -> Self:
        self._then = then
        return self

    def model_changed(self, model: str, state: str, load_seconds: float | None) -> None:
        super().model_changed(model, state, load_seconds)
        asyncio.get_running_loop().call_soon(self.announce)  # when the change is whole
