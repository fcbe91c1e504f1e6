"""Answers that replicas share, behind the cache in memory. Owned by the event loop; runner.py asks and tells.

    memory ── unknown texts ──> find ──> Store.read, one round trip ──> decode ── what is not there ──> the model
    the model's answers ──> keep ──> a bounded queue ──> encode ──> Store.write, while nobody waits

A store that is away, slow or broken is a miss and nothing else. What stands there may be read by others: the names are
digests of tokens. Without a secret, whoever can write there decides what vectors are (SECURITY.md).

What a request of 32 texts of 384 numbers costs the event loop, Redis 7 on the same machine of 2 cores: 0.36 ms without
a store, as before there was one; 1.1 ms if all are there, and nothing runs; 1.9 ms if none is, writing them included.
More than half of that is redis-py's. `name_of` takes 2 us a text, `encode` 5, `decode` 11.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

from vectord.engine.cache.answer_codec import Shapes, decode, encode, key_of
from vectord.engine.cache.breaker import Breaker
from vectord.engine.cache.memory import answer_bytes
from vectord.engine.queue.batch import Answer, Key

FORMAT = 1  # of names and values; also to be raised when a model's numbers come to mean something else
LOOKUP_TIMEOUT_S = 0.05  # that a request waits for one look-up at most
WRITE_TIMEOUT_S = 1.0
MAX_LOOKUPS = 64  # at once; whoever comes then goes without
TEXTS_PER_LOOKUP = 256  # in one round trip
TEXTS_PER_WRITE = 64
MAX_ANSWER_BYTES = 2**20  # a larger one is not shared
MAX_VALUE_BYTES = MAX_ANSWER_BYTES + 256  # with its heads
MAX_WAITING_BYTES = 16 * 2**20  # of answers to be written; what comes on top is dropped


class Store(Protocol):
    """Bytes by name, outside this process. May raise anything, take any time, and answer anything."""

    async def open(self) -> None:
        """Once, before all else; need not reach anybody."""
        ...

    async def read(self, names: Sequence[bytes]) -> Sequence[object]:
        """The bytes under each name, None where there are none."""
        ...

    async def write(self, values: Mapping[bytes, bytes]) -> None: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Found:
    answers: Mapping[bytes, Answer]  # by name
    refused: int  # values that were there and were none, or written with another secret


def name_of(key: Key, dtype: str) -> bytes:
    """What a text's answer is called: nobody reads the text from it. dtype: replicas may compute in different ones."""
    fingerprint, ids, types, layout, kinds = key
    digest = sha256()
    for part in (ids, types, layout, ",".join(sorted(kinds)).encode(), dtype.encode()):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return b"vectord:answer:%d:%b:%b" % (FORMAT, fingerprint.encode(), digest.hexdigest().encode())


class SharedCache:
    """No method raises but for a caller's own cancelling, and none waits longer than its bounds."""

    def __init__(self, store: Store, secret: bytes = b"") -> None:
        """secret: what all replicas know, nobody else does; only what was written with it counts. Empty: anything."""
        self._store = store
        self._key = key_of(secret) if secret else b""
        self._reading = Breaker("reading the shared cache")
        self._writing = Breaker("writing to the shared cache")
        self._lookups = 0
        self._waiting: deque[tuple[bytes, Answer]] = deque()
        self._waiting_bytes = 0
        self._writer: asyncio.Task[None] | None = None

    async def open(self) -> None:
        try:
            await self._store.open()
        except Exception as problem:  # a store may raise anything
            self._reading.failed(problem)

    async def find(self, wanted: Mapping[bytes, Shapes]) -> Found:
        """What the store knows of these names, TEXTS_PER_LOOKUP at most, if it is in these shapes."""
        names = list(wanted)
        values = await self._read(names) if names else []
        stored = {name: value for name, value in zip(names, values, strict=True) if value is not None}
        answers = {name: self._decoded(name, value, wanted[name]) for name, value in stored.items()}
        known = {name: answer for name, answer in answers.items() if answer is not None}
        return Found(known, len(stored) - len(known))

    def keep(self, name: bytes, answer: Answer) -> None:
        """Write it some time soon, or not at all. answer: of kinds that cache.py keeps, not to be changed."""
        size = answer_bytes(answer)
        if self._writing.waits or size > MAX_ANSWER_BYTES or self._waiting_bytes + size > MAX_WAITING_BYTES:
            return
        self._waiting.append((name, answer))
        self._waiting_bytes += size
        if self._writer is None:
            self._writer = asyncio.create_task(self._write())

    async def close(self) -> None:
        """What waits to be written is dropped."""
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.wait([self._writer])
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await self._store.close()
        except Exception as problem:  # a store may raise anything
            self._writing.failed(problem)

    async def _read(self, names: Sequence[bytes]) -> Sequence[object]:
        nothing: Sequence[object] = [None] * len(names)
        if self._lookups >= MAX_LOOKUPS or not self._reading.lets_pass():
            return nothing
        self._lookups += 1
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                values = await self._store.read(names)
            if len(values) != len(names):
                raise ValueError("not as many values as names")
        except Exception as problem:  # a store may raise anything
            self._reading.failed(problem)
            return nothing
        finally:
            self._lookups -= 1
        self._reading.worked()
        return values

    async def _write(self) -> None:
        try:
            while self._waiting and self._writing.lets_pass():
                async with asyncio.timeout(WRITE_TIMEOUT_S):
                    await self._store.write(self._next_values())
                self._writing.worked()
        except Exception as problem:  # a store may raise anything
            self._writing.failed(problem)
        finally:
            self._waiting.clear()  # nothing, unless the store fails
            self._waiting_bytes = 0
            self._writer = None

    def _next_values(self) -> dict[bytes, bytes]:
        values: dict[bytes, bytes] = {}
        while self._waiting and len(values) < TEXTS_PER_WRITE:
            name, answer = self._waiting.popleft()
            self._waiting_bytes -= answer_bytes(answer)
            values[name] = encode(name, answer, self._key)
        return values

    def _decoded(self, name: bytes, value: object, shapes: Shapes) -> Answer | None:
        if not isinstance(value, bytes) or len(value) > MAX_VALUE_BYTES:
            return None
        return decode(name, value, shapes, self._key)
