"""Runs one batch so that every text receives an answer or an error of its own. Blocks; called by the worker's threads,
and for a lone call by the caller's.

    whole batch ── MemoryError ──> two halves, down to one text, which then fails with OutOfMemory
        │
        ├───────── any other exception ──> text by text: one poison text fails alone
        │
        └── answers ── a text whose numbers are not all finite ──> alone in float32; fails if still not finite

After trouble the items are cut into parts, each with its own answers or error. `pack` makes the arrays that the backend
reads.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np

from vectord.checkpoints.spec import ModelSpec, Output
from vectord.compute.backends.base import POOLED, Backend, PackedTexts, TokenBatch
from vectord.compute.backends.base import Answers as Outputs
from vectord.engine.queue.batch import Answers, Batch, Item
from vectord.errors import InferenceFailed, OutOfMemory
from vectord.housekeeping import GuardedLogger
from vectord.schema import AnswerKind, Float32, Int32, Sparse
from vectord.text.sequence import Prefix, Texts, cu_seqlens_of

logger = GuardedLogger(logging.getLogger("vectord.engine"))

Reply: TypeAlias = tuple[Item, Answers | InferenceFailed]  # an item of the batch, or a part of one


class Execution:
    """Runs batches of one model. All of the worker's threads share it."""

    def __init__(self, backend: Backend, spec: ModelSpec, unused: Int32) -> None:
        """unused: ids of special tokens, which sparse vectors leave out."""
        self.backend = backend
        self._outputs = spec.kinds
        self._widths = spec.widths
        self._spec = spec
        self._unused = unused

    def run(self, batch: Batch, stream: int) -> list[Reply]:
        """The replies to all texts, in order. Raises nothing, not even a SystemExit of the operator's own class."""
        return self._run(batch.items, stream, batch.alone)

    def run_alone(self, item: Item, stream: int) -> Answers | None:
        """The answers to all texts of an item, in a caller's thread. None: the queue has to run the item, because the
        forward failed or a number is not finite.

        Raises what a signal handler of the caller raises meanwhile, unless it is one of the backend's faults.
        """
        try:
            packed = pack((item,), self._outputs, alone=len(item) == 1)
            outputs = self.backend.forward(packed.batch, stream)
            self._check_shapes(outputs, packed)
        except self.backend.faults:
            return None
        is_whole = all(map(_is_finite, outputs.values()))
        return self._answers(item, packed, outputs, packed.firsts[0]) if is_whole else None

    def _run(self, items: Sequence[Item], stream: int, alone: bool) -> list[Reply]:
        texts = sum(map(len, items))
        try:
            packed = pack(items, self._outputs, alone)
            outputs = self.backend.forward(packed.batch, stream)
            self._check_shapes(outputs, packed)
            return self._split(items, packed, outputs)
        except MemoryError as cause:
            if texts == 1:
                logger.error("out of memory with one text of %d tokens", items[0].tokens, exc_info=cause)
                return [(items[0], _failure(OutOfMemory("The device has no room for this text."), cause))]
            logger.warning("out of memory with %d texts: trying halves", texts)
            parts: Sequence[Sequence[Item]] = _halves(items, texts // 2)
        except BaseException as cause:  # the device's library may raise anything
            if texts == 1:
                logger.error("a text of %d tokens failed", items[0].tokens, exc_info=cause)
                return [(items[0], _failure(InferenceFailed("The model failed on this text."), cause))]
            logger.warning("a batch of %d texts failed: trying them one by one", texts, exc_info=cause)
            parts = [(one,) for item in items for one in _each(item)]
        return [reply for part in parts for reply in self._run(part, stream, False)]

    def _check_shapes(self, outputs: Outputs, packed: Packed) -> None:
        """Refuse outputs of other shapes: with a row missing, every later text would receive another text's row."""
        for output in packed.batch.outputs:
            shape = outputs[output].shape
            rows = packed.pooled_rows if output in POOLED else len(packed.batch.texts.ids)
            width = self._widths.get(output, shape[-1])
            if shape != (rows, width):
                raise ValueError(f"expected {output} of shape {(rows, width)}, got {shape}")

    def _split(self, items: Sequence[Item], packed: Packed, outputs: Outputs) -> list[Reply]:
        finite = all(map(_is_finite, outputs.values()))
        replies: list[Reply] = []
        for item, first in zip(items, packed.firsts, strict=True):
            if finite or self._is_finite_for(item, packed, outputs, first):
                replies.append((item, self._answers(item, packed, outputs, first)))
                continue
            for place, one in enumerate(_each(item), first):
                if self._is_finite_for(one, packed, outputs, place):
                    replies.append((one, self._answers(one, packed, outputs, place)))
                else:
                    replies.append((one, self._recompute(one)))
        return replies

    def _recompute(self, item: Item) -> Answers | InferenceFailed:
        try:
            packed = pack((item,), self._outputs, alone=False)
            outputs = self.backend.forward_exact(packed.batch)
            self._check_shapes(outputs, packed)
        except BaseException as cause:
            logger.error("computing a text again in float32 failed", exc_info=cause)
            return _failure(InferenceFailed("The model's answer for this text is not finite."), cause)
        (first,) = packed.firsts
        if not self._is_finite_for(item, packed, outputs, first):
            logger.error("a text's answer is not finite, not even in float32")
            return InferenceFailed("The model's answer for this text is not finite.")
        logger.warning("a text's answer was not finite: it was computed again in float32")
        return self._answers(item, packed, outputs, first)

    def _is_finite_for(self, item: Item, packed: Packed, outputs: Outputs, first: int) -> bool:
        """Whether the requested kinds are finite: another text of the batch may have requested more.

        first: the place of the item's first text in the batch."""
        return all(_is_finite(packed.part(outputs, self._outputs[kind], first, len(item))) for kind in item.kinds)

    def _answers(self, item: Item, packed: Packed, outputs: Outputs, first: int) -> Answers:
        return {kind: self._own(item, packed, outputs, first, kind) for kind in item.kinds}

    def _own(self, item: Item, packed: Packed, outputs: Outputs, first: int, kind: AnswerKind) -> Float32 | list[Any]:
        """Returns copies, because a view would keep the whole batch in memory as long as the answer."""
        output = self._outputs[kind]
        if kind in ("dense", "scores"):
            rows = packed.part(outputs, output, first, len(item))
            return whole_numbers(rows) if kind == "dense" and self._spec.whole_numbers else rows.copy()
        places = range(first, first + len(item))
        each = [packed.part(outputs, output, place, 1) for place in places]
        if kind != "sparse":
            return [rows.copy() for rows in each]
        if output == "lexical":
            ids = [packed.ids(place) for place in places]
            return [lexical_weights(own, rows[:, 0], self._unused) for own, rows in zip(ids, each, strict=True)]
        if self._spec.sums_words:
            found = [np.flatnonzero(rows[0] > 0).astype(np.int32) for rows in each]
            return [Sparse(indices, rows[0][indices]) for indices, rows in zip(found, each, strict=True)]
        return [splade_weights(rows[0], twice=self._spec.log_twice is True) for rows in each]


def _each(item: Item) -> list[Item]:
    return [item] if len(item) == 1 else [item.part(slice(i, i + 1)) for i in range(len(item))]


def _halves(items: Sequence[Item], texts: int) -> tuple[list[Item], list[Item]]:
    """The first `texts` texts, and the others."""
    first: list[Item] = []
    others: list[Item] = []
    for item in items:
        if texts >= len(item):
            first.append(item)
        elif texts <= 0:
            others.append(item)
        else:
            first.append(item.part(slice(0, texts)))
            others.append(item.part(slice(texts, None)))
        texts -= len(item)
    return first, others


def lexical_weights(ids: Int32, weights: Float32, unused: Int32) -> Sparse:
    """The largest weight of each token id. ids (n,), weights (n,) at least 0; `unused` ids (specials) are left out.

    Indices in order of first appearance. Source: FlagEmbedding's lexical weights.
    """
    counts = (weights > 0) & ~np.isin(ids, unused)
    kept, values = ids[counts], weights[counts]
    found, first, place = np.unique(kept, return_index=True, return_inverse=True)
    largest = np.zeros(len(found), np.float32)
    np.maximum.at(largest, place, values)
    order = np.argsort(first)
    return Sparse(found[order].astype(np.int32), largest[order])


def splade_weights(logits: Float32, *, twice: bool = False) -> Sparse:
    """log(1 + x) of every word with a logit x above 0, or log(1 + log(1 + x)). logits (V,).

    Source: sentence-transformers SpladePooling.
    """
    indices = np.flatnonzero(logits > 0).astype(np.int32)
    weights = np.log1p(logits[indices])
    return Sparse(indices, np.log1p(weights) if twice else weights)


def whole_numbers(rows: Float32) -> Float32:
    """127 times the tanh of each number, rounded. Source: pplx-embed's st_quantize.FlexibleQuantizer."""
    return np.rint(np.tanh(rows) * np.float32(127))


def _is_finite(numbers: Float32) -> bool:
    return bool(np.count_nonzero(np.isfinite(numbers)) == numbers.size)  # `all` takes longer for one text


def _failure(error: InferenceFailed, cause: BaseException) -> InferenceFailed:
    error.__cause__ = cause  # for the log; the client receives the message only
    return error


class Packed(msgspec.Struct, frozen=True):
    batch: TokenBatch
    firsts: Sequence[int]  # the place of each item's first text in the batch; a prefix has a place before it
    vectors: Int32  # (N + 1,) where the rows of (M, .) of each text begin, and where the last one's end

    @property
    def pooled_rows(self) -> int:
        """M"""
        return int(self.vectors[-1])

    def part(self, outputs: Outputs, output: Output, first: int, texts: int) -> Float32:
        """The rows of an output for `texts` texts from the place `first` on: a view. Without those of their prefix."""
        bounds = self.vectors if output in POOLED else self.batch.texts.cu_seqlens
        return outputs[output][bounds[first] : bounds[first + texts]]

    def ids(self, place: int) -> Int32:
        """The ids of one text, after its prefix."""
        start, stop = self.batch.texts.cu_seqlens[place : place + 2]
        return self.batch.texts.ids[start:stop]


def pack(items: Sequence[Item], outputs: Mapping[AnswerKind, Output], alone: bool) -> Packed:
    """All tokens of all items, concatenated. A shared prefix occurs once, as a text before those that share it."""
    places: dict[tuple[Prefix, int], int] = {}  # by its adapter, too
    parts: list[Texts] = []
    parents: list[int] = []
    adapters: list[int] = []
    firsts: list[int] = []
    for item in items:
        texts = item.texts.take(item.places)
        parent = -1
        if texts.prefix is not None:
            key = (texts.prefix, texts.adapter)
            if key not in places:
                places[key] = len(parents)
                parts.append(_only_prefix(texts.prefix))
                parents.append(-1)
                adapters.append(texts.adapter)
            parent = places[key]
        firsts.append(len(parents))
        parts.append(texts.after_prefix())
        parents += [parent] * len(texts)
        adapters += [texts.adapter] * len(texts)
    joined = parts[0] if len(parts) == 1 else Texts.join(parts)
    spans = joined.spans
    if spans is not None:
        spans = spans + np.repeat(joined.cu_seqlens[:-1], joined.all_pooled)[:, None]
    packed = PackedTexts(
        ids=joined.ids,
        type_ids=joined.all_type_ids,
        cu_seqlens=joined.cu_seqlens,
        spans=spans,
        keys=joined.keys,
        parents=np.array(parents, np.int32) if places else None,
        adapters=np.array(adapters, np.int32) if any(adapters) else None,
        features=joined.features,
        coordinates=joined.coordinates,
    )
    requested = frozenset(outputs[kind] for item in items for kind in item.kinds)
    return Packed(
        batch=TokenBatch(texts=packed, outputs=requested, alone=alone),
        firsts=firsts,
        vectors=np.arange(len(joined) + 1, dtype=np.int32)
        if joined.pooled is None
        else cu_seqlens_of(joined.pooled.tolist()),
    )


def _only_prefix(prefix: Prefix) -> Texts:
    """A text of which no row is pooled."""
    return Texts(
        ids=prefix.ids,
        cu_seqlens=cu_seqlens_of([len(prefix.ids)]),
        spans=np.zeros((0, 2), np.int32),
        pooled=np.zeros(1, np.int32),
    )
