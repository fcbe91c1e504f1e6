"""Bytes that all bodies under way hold together, and who loses a place when there is no room for another.

handler.py and rpc/ have one each. A body holds its bytes from when they come until it has been parsed, those that it
becomes when it is decompressed among them.
"""

from __future__ import annotations

import threading
from typing import Protocol

from vectord.errors import Overloaded

BODIES_AT_ONCE = 8  # limits' worth of bytes that all bodies under way may hold together
GRACE_S = 10.0  # how long a body may be on its way before another can take its place


class Upload(Protocol):
    """A body that is still on its way."""

    began_s: float  # by the event loop's clock

    def cut_off(self) -> None:
        """Give back what it holds, and tell its sender."""
        ...


class BodyRoom:
    """`hold` and `release` on any thread, all else on the event loop."""

    def __init__(self, limit_bytes: int) -> None:
        """limit_bytes: of one body."""
        self.limit_bytes = limit_bytes
        self.room_bytes = BODIES_AT_ONCE * limit_bytes
        self.held_bytes = 0
        self._uploads: dict[Upload, None] = {}  # the oldest first
        self._lock = threading.Lock()

    def hold(self, n_bytes: int) -> None:
        """Raises Overloaded if there is no room for so many more."""
        with self._lock:
            if self.held_bytes + n_bytes <= self.room_bytes:
                self.held_bytes += n_bytes
                return
        raise Overloaded("Too many request bodies are being received at once; try again.", retry_after_s=1.0)

    def release(self, n_bytes: int) -> None:
        with self._lock:
            self.held_bytes -= n_bytes

    def begin(self, upload: Upload) -> None:
        self._uploads[upload] = None

    def end(self, upload: Upload) -> None:
        self._uploads.pop(upload, None)

    def make_room(self, n_bytes: int, now_s: float) -> None:
        """Cut off the oldest uploads that have had their time, until there is room or none of them is left: senders
        who let their bodies trickle must not keep others out."""
        for upload in list(self._uploads):
            if self.held_bytes + n_bytes <= self.room_bytes or now_s - upload.began_s <= GRACE_S:
                return
            self.end(upload)
            upload.cut_off()
