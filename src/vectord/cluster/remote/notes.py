"""Notes on their way to the engine's process that counts: in batches, and kept while it is away. On the event loop."""

from __future__ import annotations

import asyncio
from collections import deque

from vectord.cluster.remote.codec import encode_value
from vectord.cluster.remote.link import Link
from vectord.cluster.remote.messages import Note

LATEST_S = 0.05  # after which a note is on its way
MAX_KEPT = 16_384  # the oldest are forgotten


class Notes:
    def __init__(self, link: Link) -> None:
        self._link = link
        self._kept: deque[Note] = deque(maxlen=MAX_KEPT)
        self._timer: asyncio.TimerHandle | None = None

    def add(self, note: Note) -> None:
        self._kept.append(note)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LATEST_S, self.flush)

    def flush(self) -> None:
        """Send what is noted. Does nothing while nobody is there."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._kept and self._link.is_up:
            self._link.tell(encode_value(list(self._kept)))
            self._kept.clear()
