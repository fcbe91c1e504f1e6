"""The devices that run one model's queue: their load and state, and the texts reserved for some of them. Pure.

The worker calls it under its lock. One thread holds each stream of a device. A stream **hangs** from the end of its
batch's time until another thread has taken it, and is **lost** when none will.

The next batch goes to the least loaded device with a free stream: the one that runs the fewest tokens, and among equals
the one that has run the fewest so far. A device whose batches fail is soon idle and would attract every batch. So a
failed batch is retried on another device; if that succeeds MAX_BLAMED times in a row, the first device is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from vectord.engine.queue.batch import Batch, Item
from vectord.engine.queue.execution import Execution
from vectord.schema import DeviceState
from vectord.text.sequence import Texts

MAX_BLAMED = 3  # batches in a row that failed on a device and succeeded on another; a single one may be an accident


class Device(msgspec.Struct, frozen=True, eq=False):
    """A backend that runs batches: on a whole device, or as one of several replicas on it."""

    index: int  # among the model's devices
    name: str  # unique within the model
    execution: Execution
    streams: int
    pipelined: bool = False  # see BatchLimits


class DeviceStream(NamedTuple):
    device: Device
    number: int


class Reservation(msgspec.Struct, eq=False):
    """Texts to run together, before all others, on one of these devices: a retry, or a self-test."""

    items: list[Item]
    devices: frozenset[Device]
    suspect: Device | None = None  # the device they failed on; it is to blame if they succeed here


class RunningBatch(msgspec.Struct, frozen=True, eq=False):
    batch: Batch
    free_s: float  # when the stream became free: the end of its last batch, or started_s if the queue was empty
    started_s: float
    stream: DeviceStream
    reservation: Reservation | None = None  # where the batch came from; None: the queue


class Devices:
    def __init__(self, devices: Sequence[Device]) -> None:
        self.all = devices
        self.all_streams = [DeviceStream(device, number) for device in devices for number in range(device.streams)]
        self._running: dict[DeviceStream, RunningBatch] = {}
        self._run_tokens: Counter[Device] = Counter()  # since the start
        self._hung: set[DeviceStream] = set()
        self._lost: set[DeviceStream] = set()
        self._blamed: Counter[Device] = Counter()  # failed batches since the last one that it answered
        self.living = frozenset(devices)  # the devices with a stream that is not lost

    # --- load -------------------------------------------------------------------------------------------------

    def began(self, running: RunningBatch) -> None:
        self._running[running.stream] = running
        self._run_tokens[running.stream.device] += running.batch.tokens

    def ended(self, running: RunningBatch) -> bool:
        """False if it was given up before: its results are dropped, and its thread must end."""
        if self._running.get(running.stream) is not running:
            return False
        del self._running[running.stream]
        return True

    @property
    def is_idle(self) -> bool:
        return not self._running

    def busy_streams(self, device: Device) -> int:
        return sum(stream.device is device for stream in self._running)

    def busy_tokens(self, device: Device) -> int:
        return sum(running.batch.tokens for stream, running in self._running.items() if stream.device is device)

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
        free = {one: self._free_streams(one) for one in self.all}
        idle = sum(
            int(count > 0 and not self.busy_streams(one)) if one.pipelined else count for one, count in free.items()
        )
        return max(1, idle or sum(map(bool, free.values())))

    def _load(self, device: Device) -> tuple[int, int]:
        return self.busy_tokens(device), self._run_tokens[device]

    def _free_streams(self, device: Device) -> int:
        return device.streams - sum(stream.device is device for stream in {*self._running, *self._hung, *self._lost})

    # --- state ------------------------------------------------------------------------------------------------

    def give_up(self, started_before_s: float) -> RunningBatch | None:
        """A batch that began before this time; its stream hangs from now on. None: there is none."""
        for running in self._running.values():
            if running.started_s < started_before_s:
                del self._running[running.stream]
                self._hung.add(running.stream)
                return running
        return None

    def renewed(self, stream: DeviceStream) -> None:
        self._hung.discard(stream)

    def blame(self, device: Device) -> bool:
        """Another device has answered texts that failed on this one: whether it is to be lost now."""
        self._blamed[device] += 1
        return device in self.living and self._blamed[device] >= MAX_BLAMED

    def clear(self, device: Device) -> None:
        """The device has answered a text."""
        del self._blamed[device]

    def lose(self, streams: Sequence[DeviceStream]) -> None:
        self._lost.update(streams)
        self.living = frozenset(one.device for one in self.all_streams if one not in self._lost)

    def is_lost(self, stream: DeviceStream) -> bool:
        return stream in self._lost

    @property
    def living_streams(self) -> int:
        return len(self.all_streams) - len(self._lost)

    @property
    def states(self) -> dict[str, DeviceState]:
        """Device name -> state. hung: one of its streams hangs or is lost; lost: all are."""
        living, hung = self.living, {stream.device for stream in self._hung | self._lost}
        return {
            device.name: "lost" if device not in living else "hung" if device in hung else "ready"
            for device in self.all
        }


class Reservations:
    def __init__(self) -> None:
        self._reservations: list[Reservation] = []
        self.texts = self.tokens = 0  # of all reservations

    def add(self, reservation: Reservation) -> None:
        self._reservations.append(reservation)
        self._recount()

    def take(self, device: Device) -> Reservation | None:
        """The oldest reservation that this device may run."""
        for reservation in self._reservations:
            if device in reservation.devices:
                self._reservations.remove(reservation)
                self._recount()
                return reservation
        return None

    def cancel(self, texts: Texts, places: Sequence[int] | None = None) -> list[Item]:
        """Remove the texts at these places of a request, None: all; returns those that were reserved."""
        taken: list[Item] = []
        for reservation in list(self._reservations):
            for item in [one for one in reservation.items if one.texts is texts]:
                if (part := item.take_out(places)) is not None:
                    taken.append(part)
                    if part is item:
                        reservation.items.remove(item)
            if not reservation.items:
                self._reservations.remove(reservation)
        self._recount()
        return taken

    def take_unserved(self, living: frozenset[Device]) -> list[Item]:
        """Remove and return the texts whose devices are all lost."""
        unserved = [reservation for reservation in self._reservations if not reservation.devices & living]
        self._reservations = [reservation for reservation in self._reservations if reservation.devices & living]
        self._recount()
        return [item for reservation in unserved for item in reservation.items]

    def clear(self) -> None:
        self._reservations.clear()
        self._recount()

    def _recount(self) -> None:
        self.texts = sum(len(item) for reservation in self._reservations for item in reservation.items)
        self.tokens = sum(item.tokens for reservation in self._reservations for item in reservation.items)
