"""The devices that run one model's queue: their load, their state, and which runs the next batch. Pure.

The worker calls it under its lock. A stream of a device is a place, which one thread holds. A place is **away** while
its thread is dead or hung and not yet replaced, and **lost** when it will not be replaced.

The next batch goes to the least loaded device with a free stream: the one that runs the fewest tokens, and among equals
the one that has run the fewest so far. A device whose batches fail is soon idle and would attract every batch. So a
failed batch is retried on another device; if that succeeds MAX_BLAMED times in a row, the first device is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vectord.engine.queue.execution import Execution
from vectord.schema import DeviceState

MAX_BLAMED = 3  # consecutive batches that failed on a device and succeeded on another


@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """A backend that runs batches: on a whole device, or as one of several replicas on it."""

    index: int  # among the model's devices
    name: str  # unique within the model
    execution: Execution
    streams: int
    pipelined: bool = False  # see BatchLimits


class Place(NamedTuple):
    device: Device
    stream: int


class Devices:
    def __init__(self, devices: Sequence[Device]) -> None:
        self.all = devices
        self.places = [Place(device, stream) for device in devices for stream in range(device.streams)]
        self._busy: dict[Place, int] = {}  # running tokens
        self._run_tokens: Counter[Device] = Counter()  # since the start
        self._away: set[Place] = set()
        self._lost: set[Place] = set()
        self._blamed: Counter[Device] = Counter()

    # --- load -------------------------------------------------------------------------------------------------

    def began(self, place: Place, tokens: int) -> None:
        self._busy[place] = tokens
        self._run_tokens[place.device] += tokens

    def ended(self, place: Place) -> None:
        del self._busy[place]

    def busy_streams(self, device: Device) -> int:
        return sum(place.device is device for place in self._busy)

    def busy_tokens(self, device: Device) -> int:
        return sum(tokens for place, tokens in self._busy.items() if place.device is device)

    def is_next(self, device: Device) -> bool:
        """Whether no other device with a free stream is less loaded."""
        if len(self.all) == 1:
            return True
        own = self._load(device)
        return all(self._load(other) >= own for other in self.all if other is not device and self._spare(other))

    def sharers(self, device: Device) -> int:
        """How many batches could start now, including one on this device: each takes its share of the queue.

        A pipelined device counts while it is idle; if all devices are busy, each that could take a second batch counts.
        """
        idle = sum(self._idle_streams(one) for one in self.all)
        return max(1, idle or sum(bool(self._spare(one)) for one in self.all))

    # --- state ------------------------------------------------------------------------------------------------

    def leave(self, place: Place) -> None:
        self._away.add(place)

    def come_back(self, place: Place) -> None:
        self._away.discard(place)

    def lose(self, place: Place) -> None:
        self._away.add(place)
        self._lost.add(place)

    def is_lost(self, place: Place) -> bool:
        return place in self._lost

    @property
    def living(self) -> frozenset[Device]:
        """The devices that are not lost."""
        return frozenset(place.device for place in self.places if place not in self._lost)

    @property
    def living_streams(self) -> int:
        return len(self.places) - len(self._lost)

    @property
    def states(self) -> dict[str, DeviceState]:
        """Device name -> state. stalled: one of its streams is away."""
        living, away = self.living, {place.device for place in self._away}
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
        for place in self.places:
            if place.device is device:
                self.lose(place)
        return True

    def clear(self, device: Device) -> None:
        """The device has answered a text: its failures in a row end."""
        del self._blamed[device]

    def _load(self, device: Device) -> tuple[int, int]:
        return self.busy_tokens(device), self._run_tokens[device]

    def _spare(self, device: Device) -> int:
        """The number of free streams: neither busy nor away."""
        taken = sum(place.device is device for place in {*self._busy, *self._away})
        return device.streams - taken

    def _idle_streams(self, device: Device) -> int:
        if not device.pipelined:
            return self._spare(device)
        return int(not self.busy_streams(device) and self._spare(device) > 0)
