"""The devices that run one model's queue: who is at work, who is away, and whose turn it is. Pure; no thread, no clock.

worker.py asks and tells it under its lock. A device has streams, and a stream of a device is a place, which one thread
holds. A place is **away** while its thread is dead or hangs and no other has taken it, and **lost** when none will.

The next batch is the least loaded device's: of those with a stream to spare the one that runs the fewest tokens, and of
equals the one that has run the fewest so far. A device whose batches fail is soon idle, and would draw all of them to
itself. So what fails on one is tried on another, and if that answers MOST_BLAMED times in a row, the first is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vectord.engine.queue.execution import Execution
from vectord.schema import DeviceState

MOST_BLAMED = 3  # batches in a row that failed on a device and were answered by another


@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """One that runs batches: a backend, be it of a whole device or one of several replicas on it."""

    index: int  # its place among the model's devices
    name: str  # no other of the model has it
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
        self._busy: dict[Place, int] = {}  # tokens that run
        self._run_tokens: Counter[Device] = Counter()  # begun so far
        self._away: set[Place] = set()
        self._lost: set[Place] = set()
        self._blamed: Counter[Device] = Counter()

    # --- whose turn it is -------------------------------------------------------------------------------------

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
        """Whether no other with a stream to spare is less loaded."""
        if len(self.all) == 1:
            return True
        own = self._load(device)
        return all(self._load(other) >= own for other in self.all if other is not device and self._spare(other))

    def sharers(self, device: Device) -> int:
        """How many batches could begin now, one on this device among them: each leaves the others their share.

        A device that runs one batch at a time counts while it runs none; if all do, each that could take a second.
        """
        idle = sum(self._idle_streams(one) for one in self.all)
        return max(1, idle or sum(bool(self._spare(one)) for one in self.all))

    # --- who is there -----------------------------------------------------------------------------------------

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
        """Those that still run something, or will."""
        return frozenset(place.device for place in self.places if place not in self._lost)

    @property
    def living_streams(self) -> int:
        return len(self.places) - len(self._lost)

    @property
    def states(self) -> dict[str, DeviceState]:
        """By name. stalled: a stream of it is away."""
        living, away = self.living, {place.device for place in self._away}
        return {
            device.name: "lost" if device not in living else "stalled" if device in away else "ready"
            for device in self.all
        }

    # --- whose fault it is ------------------------------------------------------------------------------------

    def blame(self, device: Device) -> bool:
        """Another has answered what failed on this one. Whether that was once too often, and all of it is lost now."""
        self._blamed[device] += 1
        if self._blamed[device] < MOST_BLAMED or device not in self.living:
            return False
        for place in self.places:
            if place.device is device:
                self.lose(place)
        return True

    def clear(self, device: Device) -> None:
        """It has answered something itself."""
        del self._blamed[device]

    def _load(self, device: Device) -> tuple[int, int]:
        return self.busy_tokens(device), self._run_tokens[device]

    def _spare(self, device: Device) -> int:
        """Streams that could take a batch: neither at work nor away."""
        taken = sum(place.device is device for place in {*self._busy, *self._away})
        return device.streams - taken

    def _idle_streams(self, device: Device) -> int:
        if not device.pipelined:
            return self._spare(device)
        return int(not self.busy_streams(device) and self._spare(device) > 0)
