"""The answers of recent texts: kept in memory, looked up, and shared by identical concurrent texts.

AnswerCache is the memory of all models, ModelCache one model's view of it and of the shared cache. Belongs to the event
loop; queue/runner.py is the caller.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import repeat

import numpy as np

from vectord.checkpoints.spec import ModelSpec
from vectord.engine.cache.answer_codec import Shapes
from vectord.engine.cache.shared import TEXTS_PER_LOOKUP, SharedCache, name_of
from vectord.engine.events import CacheLookedUp, Observer
from vectord.engine.queue.batch import Answer, CacheKey, Job, answer_bytes
from vectord.schema import AnswerKind, Caller
from vectord.text.sequence import Texts

# A few kB per text. One vector per token is a hundred times that and would evict everything else.
KEPT_KINDS: frozenset[AnswerKind] = frozenset({"dense", "sparse", "scores"})
# Objects around one answer: key, dict, array headers, nodes. Measured: 505 (dense) to 700 (dense and sparse).
ENTRY_BYTES = 768
TEXTS_PER_STEP = 512  # texts that the loop handles without a pause for other tasks: 2 to 3 ms


def cache_keys(fingerprint: str, texts: Texts, kinds: frozenset[AnswerKind], partition: bytes = b"") -> list[CacheKey]:
    """For each text everything that determines its answer, and the part of the cache that holds it (`partition_of`).

    Type ids count only if one is not 0, which is rare.
    """
    bounds = (4 * texts.cu_seqlens).tolist()
    ids = texts.ids.tobytes()
    types = b"" if texts.type_ids is None else texts.type_ids.tobytes()
    layouts: Iterable[bytes] = repeat(b"", len(bounds) - 1)
    if texts.spans is not None:
        layouts = [spans.tobytes() for spans in np.split(texts.spans, np.cumsum(texts.all_pooled)[:-1])]
    if texts.keys is not None:
        layouts = [b"%d:%b" % (keys, layout) for keys, layout in zip(texts.keys, layouts, strict=True)]
    if texts.digests:
        layouts = [digest + layout for digest, layout in zip(texts.digests, layouts, strict=False)]
    if texts.adapter:
        layouts = [b"adapter %d:%b" % (texts.adapter, layout) for layout in layouts]
    return [
        (
            fingerprint,
            partition,
            ids[start:stop],
            own_types if (own_types := types[start:stop]).strip(b"\0") else b"",
            layout,
            kinds,
        )
        for start, stop, layout in zip(bounds, bounds[1:], layouts, strict=False)
    ]


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
        # A sum of rows is faster than a look-up. Lists are rarely sent twice, and one would displace 60 vectors. An
        # image's rows of a text displace hundreds, but take seconds.
        keeps = (memory.enabled or shared is not None) and spec.static is None and spec.listwise is None
        self.kinds = KEPT_KINDS if keeps else frozenset()  # whose answers are kept
        # Queued or running texts that other requests may wait for: the job, and the text's place in it.
        self.running: dict[CacheKey, tuple[Job, int]] = {}

    async def look_up(self, job: Job) -> list[int]:
        """Fills in the answers that are known, and sets the job's keys; returns the places of the other texts."""
        misses: list[int] = []
        partition = partition_of(job.caller, shared_between_keys=self._shared_between_keys)
        job.keys = cache_keys(self._fingerprint, job.texts, job.kinds, partition)
        for place, key in enumerate(job.keys):
            if place and place % TEXTS_PER_STEP == 0:
                await asyncio.sleep(0)
            answer = self._memory.get(key)
            if answer is None:
                misses.append(place)
            else:
                job.fill_one(place, answer)
        self._observer(CacheLookedUp(model=self._name, hits=len(job.keys) - len(misses), misses=len(misses)))
        return misses if self._shared is None or not misses else await self._look_up_shared(misses, job, self._shared)

    async def _look_up_shared(self, places: Sequence[int], job: Job, shared: SharedCache) -> list[int]:
        """Stored answers are kept in memory as well. Texts that run here already are not looked up."""
        misses: list[int] = []
        rejected = 0
        for start in range(0, len(places), TEXTS_PER_LOOKUP):
            if start:
                await asyncio.sleep(0)
            part = places[start : start + TEXTS_PER_LOOKUP]
            unknown = {job.keys[place]: place for place in part if job.keys[place] not in self.running}
            names = {name_of(key, self._dtype): key for key in unknown}
            stored = await shared.find({name: self._shapes(job, unknown[key]) for name, key in names.items()})
            rejected += stored.rejected
            answers = {names[name]: answer for name, answer in stored.answers.items()}
            for key, answer in answers.items():
                self._memory.keep(key, answer)
            for place in part:
                # The cache in memory again: another request may have computed the text during the look-up.
                known = answers.get(job.keys[place]) or self._memory.get(job.keys[place])
                if known is None:
                    misses.append(place)
                else:
                    job.fill_one(place, known)
        hits = len(places) - len(misses)
        self._observer(CacheLookedUp(model=self._name, hits=hits, misses=len(misses), shared=True, rejected=rejected))
        return misses

    def keep(self, key: CacheKey, answer: Answer) -> None:
        self._memory.keep(key, answer)
        if self._shared is not None:
            self._shared.keep(name_of(key, self._dtype), answer)

    def _shapes(self, job: Job, place: int) -> Shapes:
        pooled = 1 if job.texts.pooled is None else int(job.texts.pooled[place])
        return {kind: None if kind == "sparse" else (pooled, self._widths[kind] or 0) for kind in job.kinds}
