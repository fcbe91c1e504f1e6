"""The devices that run one model's queue: their load and state, the retries of failed batches, and hung threads. Pure.

The worker calls it under its lock. One thread holds each stream of a device. A stream is **away** while
its thread is dead or hung and not yet replaced, and **lost** when it will not be replaced.

The next batch goes to the least loaded device with a free stream: the one that runs the fewest tokens, and among equals
the one that has run the fewest so far. A device whose batches fail is soon idle and would attract every batch. So a
failed batch is retried on another device; if that succeeds MAX_BLAMED times in a row, the first device is lost.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vectord.engine.queue.batch import Batch, Item
from vectord.engine.queue.execution import Execution
from vectord.schema import DeviceState

MAX_BLAMED = 3  # consecutive batches that failed on a device and succeeded on another
MAX_HUNG = 3  # abandoned threads per device; their memory cannot be freed


@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """A backend that runs batches: on a whole device, or as one of several replicas on it."""

    index: int  # among the model's devices
    name: str  # unique within the model
    execution: Execution
    streams: int
    pipelined: bool = False  # see BatchLimits


class DeviceStream(NamedTuple):
    device: Device
    number: int


class Devices:
    def __init__(self, devices: Sequence[Device]) -> None:
        self.all = devices
        self.all_streams = [DeviceStream(device, number) for device in devices for number in range(device.streams)]
        self._busy: dict[DeviceStream, int] = {}  # running tokens
        self._run_tokens: Counter[Device] = Counter()  # since the start
        self._away: set[DeviceStream] = set()
        self._lost: set[DeviceStream] = set()
        self.living = frozenset(devices)  # the devices with a stream that is not lost
        self._blamed: Counter[Device] = Counter()

    # --- load -------------------------------------------------------------------------------------------------

    def began(self, stream: DeviceStream, tokens: int) -> None:
        self._busy[stream] = tokens
        self._run_tokens[stream.device] += tokens

    def ended(self, stream: DeviceStream) -> None:
        del self._busy[stream]

    def busy_streams(self, device: Device) -> int:
        return sum(stream.device is device for stream in self._busy)

    def busy_tokens(self, device: Device) -> int:
        return sum(tokens for stream, tokens in self._busy.items() if stream.device is device)

    def is_next(self, device: Device) -> bool:
        """Whether no other device with a free stream is less loaded."""
        if len(self.all) == 1:
            return True
        own = self._load(device)
        return all(self._load(other) >= own for other in self.all if other is not device and self._free_streams(other))

    def sharers(self, device: Device) -> int:
        """How many batches could start now, including one on this device: each takes its share of the queue.

        A pipelined device counts while it is idle; if all devices are busy, each that could take a second batch counts.
        """
        idle = sum(self._idle_streams(one) for one in self.all)
        return max(1, idle or sum(bool(self._free_streams(one)) for one in self.all))

    # --- state ------------------------------------------------------------------------------------------------

    def leave(self, stream: DeviceStream) -> None:
        self._away.add(stream)

    def come_back(self, stream: DeviceStream) -> None:
        self._away.discard(stream)

    def lose(self, stream: DeviceStream) -> None:
        self._away.add(stream)
        self._lost.add(stream)
        self.living = frozenset(one.device for one in self.all_streams if one not in self._lost)

    def is_lost(self, stream: DeviceStream) -> bool:
        return stream in self._lost

    @property
    def living_streams(self) -> int:
        return len(self.all_streams) - len(self._lost)

    @property
    def states(self) -> dict[str, DeviceState]:
        """Device name -> state. stalled: one of its streams is away."""
        living, away = self.living, {stream.device for stream in self._away}
        return {
            device.name: "lost" if device not in living else "stalled" if device in away else "ready"
            for device in self.all
        }

    # --- failures ---------------------------------------------------------------------------------------------

    def blame(self, device: Device) -> bool:
        """Another device has answered texts that failed on this one. True: it is lost now, for MAX_BLAMED in a row."""
        self._blamed[device] += 1
        if self._blamed[device] < MAX_BLAMED or device not in self.living:
            return False
        for stream in self.all_streams:
            if stream.device is device:
                self.lose(stream)
        return True

    def clear(self, device: Device) -> None:
        """The device has answered a text: its failures in a row end."""
        del self._blamed[device]

    def _load(self, device: Device) -> tuple[int, int]:
        return self.busy_tokens(device), self._run_tokens[device]

    def _free_streams(self, device: Device) -> int:
        """The number of free streams: neither busy nor away."""
        taken = sum(stream.device is device for stream in {*self._busy, *self._away})
        return device.streams - taken

    def _idle_streams(self, device: Device) -> int:
        if not device.pipelined:
            return self._free_streams(device)
        return int(not self.busy_streams(device) and self._free_streams(device) > 0)


@dataclass(slots=True, eq=False)
class Reservation:
    """Texts to run together, before all others, on one of these devices: a retry, or a self-test."""

    items: list[Item]
    devices: frozenset[Device]
    final: bool = False  # if they fail, no other device runs them
    suspect: Device | None = None  # the device they failed on; it is to blame if they succeed here

    @property
    def tokens(self) -> int:
        return sum(item.tokens for item in self.items)


class Retries:
    def __init__(self) -> None:
        self._reservations: list[Reservation] = []

    def queued(self) -> tuple[int, int]:
        """The number of texts and tokens."""
        texts = tokens = 0
        for reservation in self._reservations:
            texts += len(reservation.items)
            tokens += reservation.tokens
        return texts, tokens

    def add(self, reservation: Reservation) -> None:
        self._reservations.append(reservation)

    def take(self, device: Device) -> Reservation | None:
        """The oldest reservation that this device may run."""
        for reservation in self._reservations:
            if device in reservation.devices:
                self._reservations.remove(reservation)
                return reservation
        return None

    def cancel(self, item: Item) -> bool:
        for reservation in self._reservations:
            if item in reservation.items:
                reservation.items.remove(item)
                if not reservation.items:
                    self._reservations.remove(reservation)
                return True
        return False

    def take_unserved(self, living: frozenset[Device]) -> list[Item]:
        """Remove and return the texts whose devices are all lost."""
        unserved = [reservation for reservation in self._reservations if not reservation.devices & living]
        self._reservations = [reservation for reservation in self._reservations if reservation.devices & living]
        return [item for reservation in unserved for item in reservation.items]

    def clear(self) -> None:
        self._reservations.clear()


@dataclass(frozen=True, slots=True)
class RunningBatch:
    batch: Batch
    free_s: float  # when the stream became free: the end of its last batch, or started_s if the queue was empty
    started_s: float
    stream: DeviceStream
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
                self._hung.append((running.stream.device, thread))
                return running
        return None

    def hung_on(self, device: Device) -> int:
        return sum(one is device for one, _ in self._hung)
