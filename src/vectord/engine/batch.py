"""What waits and what runs: one text's tokens (Item), and the items that go to the device together (Batch).

runner.py makes Items on the event loop, scheduler.py turns them into Batches, worker.py runs those. Plain values:
nothing here has a thread or a clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from vectord.backends.base import Int32
from vectord.errors import VectordError
from vectord.schema import Float32, Lane

Output: TypeAlias = Literal["dense", "tokens"]
Key: TypeAlias = tuple[str, bytes, bytes]  # fingerprint, token ids, type ids: what decides a dense row


class Waiter(Protocol):
    """Who gets an item's row; lives on the event loop."""

    def fill(self, index: int, row: Float32, started_s: float, ended_s: float) -> None: ...

    def fail(self, index: int, error: VectordError) -> None: ...


@dataclass(slots=True, eq=False)
class Item:
    """One text. Compared by identity: two equal texts are two items unless the cache joins them."""

    ids: Int32  # (n,)
    type_ids: Int32  # (n,)
    tokens: int  # n
    output: Output
    client: str
    lane: Lane
    key: Key | None = None  # None: neither cached nor shared
    waiters: list[tuple[Waiter, int]] = field(default_factory=list)  # touched on the event loop only


@dataclass(frozen=True, slots=True)
class Batch:
    items: Sequence[Item]
    output: Output
    tokens: int
    alone: bool  # one text, no other stream at work, nothing waiting: the whole device may work on it
    pressed: bool  # more was waiting: the device was running at the speed of a busy server
