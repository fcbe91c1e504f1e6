"""Whether to ask something that may be away: shared_cache.py has one for reading and one for writing."""

from __future__ import annotations

import logging
import time

RETRY_S = 5.0  # after a failure: until then nobody asks

logger = logging.getLogger("vectord.cache")


class Breaker:
    """Opens with a failure; then one call every RETRY_S tries, until one works. The log tells of both, once."""

    def __init__(self, what: str) -> None:
        """what: for the log."""
        self._what = what
        self._open = False
        self._again_s = 0.0  # by time.monotonic()

    @property
    def waits(self) -> bool:
        """It is open, and no call would be let pass."""
        return self._open and time.monotonic() < self._again_s

    def lets_pass(self) -> bool:
        if not self._open:
            return True
        if self.waits:
            return False
        self._again_s = time.monotonic() + RETRY_S  # this call tries; the others do not wait with it
        return True

    def failed(self, problem: Exception) -> None:
        """Its class is logged and not its words, which may hold an address with a password."""
        self._again_s = time.monotonic() + RETRY_S
        if not self._open:
            self._open = True
            logger.warning("%s fails (%s): going on without it", self._what, type(problem).__name__)

    def worked(self) -> None:
        if self._open:
            self._open = False
            logger.warning("%s works again", self._what)
