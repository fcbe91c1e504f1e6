"""Reports a change of a model's state to the front-ends. Belongs to the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from vectord.engine.events import Event, ModelStateChanged, Observer


class Announcing:
    def __init__(self) -> None:
        self.announce: Callable[[], None] = lambda: None  # the server's, once there is one

    def over(self, then: Observer) -> Observer:
        """An observer that calls `then`, and `announce` after each change of a model's state."""

        def observe(event: Event) -> None:
            then(event)
            if isinstance(event, ModelStateChanged):
                asyncio.get_running_loop().call_soon(self.announce)  # when the change is complete

        return observe
