"""The answers of recent texts: kept in memory, looked up, and shared by identical concurrent texts.

AnswerCache is the memory of all models, ModelCache one model's view of it and of the shared cache. Belongs to the event
loop; queue/runner.py is the caller.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import NamedTuple

from vectord.checkpoints.spec import ModelSpec
from vectord.engine.cache.answer_codec import Shapes
from vectord.engine.cache.shared import TEXTS_PER_LOOKUP, SharedCache, name_of
from vectord.engine.events import CacheLookedUp, Observer
from vectord.engine.queue.batch import Answer, CacheKey, Item, answer_bytes
from vectord.schema import AnswerKind, Caller, Int32
from vectord.text.sequence import TokenSequence

# A few kB per text. One vector per token is a hundred times that and would evict everything else.
KEPT_KINDS: frozenset[AnswerKind] = frozenset({"dense", "sparse", "scores"})
# Objects around one answer: key, dict, array headers, nodes. Measured: 505 (dense) to 700 (dense and sparse).
ENTRY_BYTES = 768
TEXTS_PER_STEP = 512  # texts that the loop handles without a pause for other tasks: 2 to 3 ms


def cache_key(
    fingerprint: str, ids: Int32, type_ids: Int32, layout: bytes, kinds: frozenset[AnswerKind], partition: bytes = b""
) -> CacheKey:
    """Everything that determines an answer, and the part of the cache that holds it (`partition_of`).

    Type ids count only if one is not 0, which is rare. layout: spans, keys, adapter.
    """
    types = type_ids.tobytes()
    return (fingerprint, partition, ids.tobytes(), types if types.strip(b"\0") else b"", layout, kinds)


def partition_of(caller: Caller, *, shared_between_keys: bool) -> bytes:
    """The part of the cache that this request reads and fills; b"" for clients without a named key or a salt.

    A client of another part can neither find these answers nor learn from response times which texts they belong to.
    """
    name = caller.client.encode() if caller.named and not shared_between_keys else b""
    salt = caller.cache_salt.encode("utf-8", "surrogatepass")
    if not name and not salt:
        return b""
    return blake2b(salt, digest_size=16, key=blake2b(name, digest_size=16).digest(), person=b"vectord-part").digest()


class AnswerCache:
    """Evicts the least recently used answers above `max_bytes`, or above `max_texts` of one model. 0: keeps nothing.

    A dense row is kept raw: the model's float32 output before `dimensions` and normalization, so that every request can
    use it.
    """

    def __init__(self, max_bytes: int, max_texts: int | None = None) -> None:
        """max_texts: of each model; replaces max_bytes, unless that is 0."""
        self.max_bytes = max_bytes if max_texts is None else 2**62 if max_bytes and max_texts else 0
        self.bytes = 0
        self._max_texts = max_texts
        self._answers: OrderedDict[CacheKey, Answer] = OrderedDict()
        self._of_model: dict[str, OrderedDict[CacheKey, None]] = {}  # by fingerprint; with max_texts only

    def __len__(self) -> int:
        return len(self._answers)

    @property
    def enabled(self) -> bool:
        return self.max_bytes > 0

    def get(self, key: CacheKey) -> Answer | None:
        """The answer. The caller must not change it."""
        answer = self._answers.get(key)
        if answer is not None:
            self._answers.move_to_end(key)
            if self._max_texts is not None:
                self._of_model[key[0]].move_to_end(key)
        return answer

    def keep(self, key: CacheKey, answer: Answer) -> None:
        """answer: with arrays of its own, not views of a whole batch (execution.py copies them)."""
        size = _entry_bytes(key, answer)
        if key in self._answers or size > self.max_bytes:
            return
        self._answers[key] = answer
        self.bytes += size
        if self._max_texts is not None:
            of_model = self._of_model.setdefault(key[0], OrderedDict())
            of_model[key] = None
            if len(of_model) > self._max_texts:
                oldest, _ = of_model.popitem(last=False)
                self.bytes -= _entry_bytes(oldest, self._answers.pop(oldest))
        while self.bytes > self.max_bytes:
            self.bytes -= _entry_bytes(*self._answers.popitem(last=False))


def _entry_bytes(key: CacheKey, answer: Answer) -> int:
    _, partition, ids, types, layout, _ = key
    return ENTRY_BYTES + len(partition) + len(ids) + len(types) + len(layout) + answer_bytes(answer)


class Miss(NamedTuple):
    position: int
    sequence: TokenSequence
    key: CacheKey | None  # None: the answer is neither kept nor shared with other requests


class ModelCache:
    def __init__(
        self,
        name: str,
        spec: ModelSpec,
        dtype: str,
        memory: AnswerCache,
        shared: SharedCache | None,
        observer: Observer,
        *,
        shared_between_keys: bool = False,
    ) -> None:
        """dtype: the model's, since replicas may compute in different ones. shared_between_keys: named keys find each
        other's answers."""
        self._name = name
        self._fingerprint = spec.fingerprint
        self._dtype = dtype
        self._memory = memory
        self._shared = shared
        self._observer = observer
        self._shared_between_keys = shared_between_keys
        self._widths = {kind: spec.widths.get(output) for kind, output in spec.kinds.items()}
        self.kinds = KEPT_KINDS if memory.enabled or shared is not None else frozenset()  # whose answers are kept
        self.running: dict[CacheKey, Item] = {}  # queued or running items that other requests may wait for

    async def look_up(
        self,
        sequences: Sequence[TokenSequence],
        kinds: frozenset[AnswerKind],
        caller: Caller,
        found: Callable[[int, Answer], None],
    ) -> list[Miss]:
        """Calls `found` with the index and answer of each hit; returns the misses."""
        misses: list[Miss] = []
        partition = partition_of(caller, shared_between_keys=self._shared_between_keys)
        for index, one in enumerate(sequences):
            if index and index % TEXTS_PER_STEP == 0:
                await asyncio.sleep(0)
            key = cache_key(self._fingerprint, one.ids, one.type_ids, _layout(one), kinds, partition)
            answer = self._memory.get(key)
            if answer is None:
                misses.append(Miss(index, one, key))
            else:
                found(index, answer)
        self._observer(CacheLookedUp(model=self._name, hits=len(sequences) - len(misses), misses=len(misses)))
        return misses if self._shared is None or not misses else await self._look_up_shared(misses, self._shared, found)

    async def _look_up_shared(
        self, texts: Sequence[Miss], shared: SharedCache, found: Callable[[int, Answer], None]
    ) -> list[Miss]:
        """Stored answers are kept in memory as well. Texts that run here already are not looked up."""
        misses: list[Miss] = []
        rejected = 0
        for start in range(0, len(texts), TEXTS_PER_LOOKUP):
            if start:
                await asyncio.sleep(0)
            part = texts[start : start + TEXTS_PER_LOOKUP]
            unknown = {one.key: one.sequence for one in part if one.key is not None and one.key not in self.running}
            names = {name_of(key, self._dtype): key for key in unknown}
            stored = await shared.find({name: self._shapes(unknown[key], key[-1]) for name, key in names.items()})
            rejected += stored.rejected
            answers = {names[name]: answer for name, answer in stored.answers.items()}
            for key, answer in answers.items():
                self._memory.keep(key, answer)
            for miss in part:
                # The cache in memory again: another request may have computed the text during the look-up.
                known = None if miss.key is None else answers.get(miss.key) or self._memory.get(miss.key)
                if known is None:
                    misses.append(miss)
                else:
                    found(miss.position, known)
        hits = len(texts) - len(misses)
        self._observer(CacheLookedUp(model=self._name, hits=hits, misses=len(misses), shared=True, rejected=rejected))
        return misses

    def keep(self, key: CacheKey, answer: Answer) -> None:
        self._memory.keep(key, answer)
        if self._shared is not None:
            self._shared.keep(name_of(key, self._dtype), answer)

    def _shapes(self, sequence: TokenSequence, kinds: frozenset[AnswerKind]) -> Shapes:
        return {kind: None if kind == "sparse" else (sequence.pooled, self._widths[kind] or 0) for kind in kinds}


def _layout(sequence: TokenSequence) -> bytes:
    layout = b"" if sequence.spans is None else sequence.spans.tobytes()
    if sequence.keys is not None:
        layout = b"%d:%b" % (sequence.keys, layout)
    return layout if not sequence.adapter else b"adapter %d:%b" % (sequence.adapter, layout)
