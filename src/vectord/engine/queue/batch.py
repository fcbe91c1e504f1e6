"""An Item is a queued sequence; a Batch is the items that a device runs together. Plain values.

runner.py makes Items on the event loop, scheduler.py makes Batches of them, worker.py runs those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from vectord.errors import VectordError
from vectord.schema import Float32, Lane, Sparse
from vectord.text.sequence import TokenSequence

# The kinds of answers. dense (M, D), scores (M, L): one row per span, usually one; colbert and tokens (n, .): one row
# per token; sparse: a Sparse.
Kind: TypeAlias = Literal["dense", "sparse", "colbert", "tokens", "scores"]
Answer: TypeAlias = Mapping[Kind, Float32 | Sparse]
Key: TypeAlias = tuple[str, bytes, bytes, bytes, frozenset[Kind]]  # fingerprint, ids, type ids, spans and keys, kinds


class Waiter(Protocol):
    """Receives an item's answer, on the event loop."""

    def fill(self, index: int, answer: Answer, started_s: float, ended_s: float) -> None: ...

    def fail(self, index: int, error: VectordError) -> None: ...


@dataclass(slots=True, eq=False)
class Item:
    """A sequence in the queue. Compared by identity: two equal texts are two items unless the cache joins them."""

    sequence: TokenSequence
    kinds: frozenset[Kind]
    client: str
    lane: Lane
    key: Key | None = None  # None: neither cached nor shared with other requests
    waiters: list[tuple[Waiter, int]] = field(default_factory=list)  # on the event loop only
    tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = len(self.sequence.ids)


@dataclass(frozen=True, slots=True)
class Batch:
    items: Sequence[Item]
    tokens: int
    alone: bool  # one text, no other stream busy, empty queue: the whole device may work on it
    pressed: bool  # more texts were queued: its duration measures the device's speed under load
