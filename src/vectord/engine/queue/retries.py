"""Texts that run before the queue, on certain devices: retries of a failed batch, and self-tests. Pure.

The worker calls it under its lock.
"""

from __future__ import annotations

from dataclasses import dataclass

from vectord.engine.queue.batch import Batch, Item
from vectord.engine.queue.devices import Device


@dataclass(slots=True, eq=False)
class Reservation:
    """Texts to run together, before all others, on one of these devices."""

    items: list[Item]
    devices: frozenset[Device]
    final: bool = False  # if they fail, no other device runs them
    suspect: Device | None = None  # the device they failed on; it is to blame if they succeed here

    @property
    def tokens(self) -> int:
        return sum(item.tokens for item in self.items)

    def batch(self) -> Batch:
        return Batch(self.items, self.tokens, alone=False, pressed=False)


class Retries:
    def __init__(self) -> None:
        self._reservations: list[Reservation] = []

    @property
    def texts(self) -> int:
        return sum(len(reservation.items) for reservation in self._reservations)

    @property
    def tokens(self) -> int:
        return sum(reservation.tokens for reservation in self._reservations)

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
