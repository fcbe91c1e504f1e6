"""Whether this process is on its way out. Begun by run.py or compose; read by handler.py and probes.py."""

from __future__ import annotations

from collections.abc import Callable


class Shutdown:
    """Begins once and never ends. Event loop only."""

    def __init__(self) -> None:
        self.begun = False
        self._listeners: list[Callable[[], None]] = []

    def begin(self) -> None:
        """New requests are refused from now on; whoever serves the port is told to drain it."""
        if self.begun:
            return
        self.begun = True
        for tell in self._listeners:
            tell()

    def on_begin(self, tell: Callable[[], None]) -> None:
        self._listeners.append(tell)
