"""Which thread runs which batch, and which of them hang. Pure; the worker calls it under its lock."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from vectord.engine.queue.batch import Batch
from vectord.engine.queue.devices import Device, Place
from vectord.engine.queue.retries import Reservation

MAX_HUNG = 3  # abandoned threads per device; their memory cannot be freed


@dataclass(frozen=True, slots=True)
class RunningBatch:
    batch: Batch
    free_s: float  # when the stream became free: the end of its last batch, or started_s if the queue was empty
    started_s: float
    place: Place
    reservation: Reservation | None  # where the batch came from; None: the queue


class HangMonitor:
    """A hung thread cannot be ended. It is abandoned: its batch fails, and its result, if any, is dropped."""

    def __init__(self, timeout_s: float) -> None:
        """timeout_s: 0: a forward may take any time."""
        self.timeout_s = timeout_s
        self._running: dict[threading.Thread, RunningBatch] = {}  # without abandoned threads
        self._hung: list[tuple[Device, threading.Thread]] = []

    @property
    def hung_threads(self) -> list[threading.Thread]:
        return [thread for _, thread in self._hung]

    def began(self, running: RunningBatch) -> None:
        """The calling thread runs this from now on."""
        self._running[threading.current_thread()] = running

    def ended(self) -> RunningBatch | None:
        """What the calling thread ran; None if it was abandoned meanwhile."""
        return self._running.pop(threading.current_thread(), None)

    def abandon_overdue(self, now_s: float) -> RunningBatch | None:
        """A batch that has run for longer than the timeout; its thread is abandoned. None: there is none left."""
        for thread, running in self._running.items():
            if self.timeout_s and now_s - running.started_s > self.timeout_s:
                del self._running[thread]
                self._hung.append((running.place.device, thread))
                return running
        return None

    def hung_on(self, device: Device) -> int:
        return sum(one is device for one, _ in self._hung)
