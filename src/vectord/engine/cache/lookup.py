"""One model's view of the caches: looks texts up, keeps answers, and lets identical concurrent texts share one run.

Belongs to the event loop; queue/runner.py is its caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from vectord.checkpoints.spec import ModelSpec
from vectord.engine.cache.answer_codec import Shapes
from vectord.engine.cache.memory import KEPT_KINDS, AnswerCache, cache_key
from vectord.engine.cache.shared import TEXTS_PER_LOOKUP, SharedCache, name_of
from vectord.engine.events import CacheLookedUp, Observer
from vectord.engine.queue.batch import Answer, Item, Key, Kind
from vectord.engine.queue.execution import output_of, widths_of
from vectord.text.sequence import TokenSequence

TEXTS_PER_STEP = 512  # texts that the loop handles without a pause for other tasks: 2 to 3 ms


class Miss(NamedTuple):
    position: int
    sequence: TokenSequence
    key: Key | None  # None: the answer is neither kept nor shared with other requests


class ModelCache:
    def __init__(
        self,
        name: str,
        spec: ModelSpec,
        dtype: str,
        memory: AnswerCache,
        shared: SharedCache | None,
        observer: Observer,
    ) -> None:
        """dtype: the model's, since replicas may compute in different ones."""
        self._name = name
        self._fingerprint = spec.fingerprint
        self._dtype = dtype
        self._memory = memory
        self._shared = shared
        self._observer = observer
        widths = widths_of(spec)
        self._widths = {kind: widths.get(output) for kind, output in output_of(spec).items()}
        self._running: dict[Key, Item] = {}  # queued or running items that other requests may wait for

    def covers(self, kinds: frozenset[Kind]) -> bool:
        """Whether answers of these kinds are kept."""
        return kinds <= KEPT_KINDS and (self._memory.enabled or self._shared is not None)

    async def look_up(
        self, sequences: Sequence[TokenSequence], kinds: frozenset[Kind], found: Callable[[int, Answer], None]
    ) -> list[Miss]:
        """Calls `found` with the index and answer of each hit; returns the misses."""
        misses: list[Miss] = []
        for index, one in enumerate(sequences):
            if index and index % TEXTS_PER_STEP == 0:
                await asyncio.sleep(0)
            key = cache_key(self._fingerprint, one.ids, one.type_ids, _layout(one), kinds)
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
            unknown = {one.key: one.sequence for one in part if one.key is not None and one.key not in self._running}
            names = {self._stored_name(key): key for key in unknown}
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

    def running(self, key: Key | None) -> Item | None:
        """The same text of another request, queued or running."""
        return None if key is None else self._running.get(key)

    def started(self, item: Item) -> None:
        """From now on other requests may wait for this item."""
        if item.key is not None:
            self._running[item.key] = item

    def ended(self, item: Item) -> None:
        """The item has an answer or an error, or was cancelled."""
        if item.key is not None:
            self._running.pop(item.key, None)

    def keep(self, item: Item, answer: Answer) -> None:
        if item.key is not None:
            self._memory.keep(item.key, answer)
            if self._shared is not None:
                self._shared.keep(self._stored_name(item.key), answer)

    def _stored_name(self, key: Key) -> bytes:
        return name_of(key, self._dtype)

    def _shapes(self, sequence: TokenSequence, kinds: frozenset[Kind]) -> Shapes:
        """The expected shapes of this text's answer."""
        return {kind: None if kind == "sparse" else (sequence.pooled, self._widths[kind] or 0) for kind in kinds}


def _layout(sequence: TokenSequence) -> bytes:
    """What determines an answer besides the tokens."""
    spans = b"" if sequence.spans is None else sequence.spans.tobytes()
    return spans if sequence.keys is None else b"%d:%b" % (sequence.keys, spans)
