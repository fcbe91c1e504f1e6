"""Whether and when a request is sent again. All that this client asks may be asked twice: it changes nothing. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from vectord.client.errors import ClientError, TryLater

FIRST_WAIT_S = 0.5  # doubled for each further one
LONGEST_WAIT_S = 8.0
SPREAD = 0.25  # of a wait: those who were refused together shall not come back together


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    max_retries: int
    within_s: float  # of the first attempt; none begins later
    chance: Callable[[], float] = random.random

    def wait_s(self, error: ClientError, attempts: int, elapsed_s: float) -> float | None:
        """Seconds until the next attempt after so many; None: `error` is what the call ends with."""
        if not isinstance(error, TryLater) or attempts > self.max_retries:
            return None
        told_s = error.retry_after_s
        least_s = min(FIRST_WAIT_S * 2.0 ** (attempts - 1), LONGEST_WAIT_S) if told_s is None else told_s
        wait_s = least_s * (1 + SPREAD * self.chance())
        return wait_s if elapsed_s + wait_s <= self.within_s else None
