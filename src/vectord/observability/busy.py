"""How busy the device has been of late, from forwards as they end. Owned by the event loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

MEMORY_S = 10.0  # a second counts half as much after seven: fast enough to scale by, slow enough not to flap


class Busy:
    """The share of time in which forwards ran, the last seconds counting most."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._share = 0.0
        self._seen_s = now_s()

    def ran(self, seconds: float) -> None:
        """A forward has just ended. seconds: of it, divided by how many may run at once."""
        self._share = self.share() - math.expm1(-seconds / MEMORY_S)
        self._seen_s = self._now_s()

    def share(self) -> float:
        """0 to 1, or a little above while long forwards end."""
        return self._share * math.exp((self._seen_s - self._now_s()) / MEMORY_S)
