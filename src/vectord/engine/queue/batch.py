"""What waits and what runs: one text's tokens (Item), and the items that go to the device together (Batch).

runner.py makes Items on the event loop, scheduler.py turns them into Batches, worker.py runs those. Plain values:
nothing here has a thread or a clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from vectord.errors import VectordError
from vectord.schema import Float32, Lane, Sparse
from vectord.text.sequence import TokenSequence

# What a text is asked for. dense (M, D), scores (M, L): a row a span, usually one; colbert and tokens (n, .): a row a
# token; sparse: a Sparse.
Kind: TypeAlias = Literal["dense", "sparse", "colbert", "tokens", "scores"]
Answer: TypeAlias = Mapping[Kind, Float32 | Sparse]
Key: TypeAlias = tuple[str, bytes, bytes, bytes, frozenset[Kind]]  # fingerprint, ids, type ids, spans and keys, kinds


class Waiter(Protocol):
    """Who gets an item's answer; lives on the event loop."""

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
    alone: bool  # one text, no other stream at work, nothing waiting: the whole device may work on it
    pressed: bool  # more was waiting: the device was running at the speed of a busy server
