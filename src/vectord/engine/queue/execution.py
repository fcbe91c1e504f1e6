"""Runs one batch so that every text receives an answer or an error of its own. Blocks; called by the worker's threads.

    whole batch ── MemoryError ──> two halves, down to one text, which then fails with OutOfMemory
        │
        ├───────── any other exception ──> text by text: one poison text fails alone
        │
        └── answers ── a text whose numbers are not all finite ──> alone in float32; fails if still not finite

`pack` makes the arrays that the backend reads.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

import numpy as np

from vectord.checkpoints.spec import ModelSpec, Output
from vectord.compute.backends.base import POOLED, Answers, Backend, PackedTexts, TokenBatch
from vectord.engine.queue.batch import Answer, Batch, Item
from vectord.errors import InferenceFailed, OutOfMemory
from vectord.housekeeping import GuardedLogger
from vectord.schema import AnswerKind, Float32, Int32, Sparse
from vectord.text.sequence import Prefix, TokenSequence

logger = GuardedLogger(logging.getLogger("vectord.engine"))

Reply: TypeAlias = Answer | InferenceFailed


class Execution:
    """Runs batches of one model. All of the worker's threads share it."""

    def __init__(self, backend: Backend, spec: ModelSpec, unused: Int32) -> None:
        """unused: ids of special tokens, which sparse vectors leave out."""
        self.backend = backend
        self._outputs = spec.kinds
        self._widths = spec.widths
        self._log_twice, self._whole_numbers = spec.log_twice is True, spec.whole_numbers is True
        self._unused = unused

    def run(self, batch: Batch, stream: int) -> list[Reply]:
        """One reply per item, in order. Raises nothing, not even a SystemExit of the operator's own class."""
        return self._run(batch.items, stream, batch.alone)

    def _run(self, items: Sequence[Item], stream: int, alone: bool) -> list[Reply]:
        try:
            packed = pack(items, self._outputs, alone)
            answers = self.backend.forward(packed.batch, stream)
            self._check_shapes(answers, packed)
            return self._split(items, packed, answers)
        except MemoryError as cause:
            if len(items) == 1:
                logger.error("out of memory with one text of %d tokens", items[0].tokens, exc_info=cause)
                return [_failure(OutOfMemory("The device has no room for this text."), cause)]
            logger.warning("out of memory with %d texts: trying halves", len(items))
            middle = len(items) // 2
            parts: Sequence[Sequence[Item]] = (items[:middle], items[middle:])
        except BaseException as cause:  # the device's library may raise anything
            if len(items) == 1:
                logger.error("a text of %d tokens failed", items[0].tokens, exc_info=cause)
                return [_failure(InferenceFailed("The model failed on this text."), cause)]
            logger.warning("a batch of %d texts failed: trying them one by one", len(items), exc_info=cause)
            parts = [(item,) for item in items]
        return [result for part in parts for result in self._run(part, stream, False)]

    def _check_shapes(self, answers: Answers, packed: Packed) -> None:
        """Raises ValueError. With a row missing, every later text would receive another text's row."""
        for output in packed.batch.outputs:
            shape = answers[output].shape
            rows = packed.pooled_rows if output in POOLED else len(packed.batch.texts.ids)
            width = self._widths.get(output, shape[-1])
            if shape != (rows, width):
                raise ValueError(f"expected {output} of shape {(rows, width)}, got {shape}")

    def _split(self, items: Sequence[Item], packed: Packed, answers: Answers) -> list[Reply]:
        finite = all(map(_is_finite, answers.values()))
        return [
            self._answer(item, packed, answers, index)
            if finite or self._is_finite_for(item, packed, answers, index)
            else self._recompute(item)
            for index, item in enumerate(items)
        ]

    def _recompute(self, item: Item) -> Reply:
        try:
            packed = pack((item,), self._outputs, alone=False)
            answers = self.backend.forward_exact(packed.batch)
            self._check_shapes(answers, packed)
        except BaseException as cause:
            logger.error("computing a text again in float32 failed", exc_info=cause)
            return _failure(InferenceFailed("The model's answer for this text is not finite."), cause)
        if not self._is_finite_for(item, packed, answers, 0):
            logger.error("a text's answer is not finite, not even in float32")
            return InferenceFailed("The model's answer for this text is not finite.")
        logger.warning("a text's answer was not finite: it was computed again in float32")
        return self._answer(item, packed, answers, 0)

    def _is_finite_for(self, item: Item, packed: Packed, answers: Answers, index: int) -> bool:
        """Whether the requested kinds are finite: another text of the batch may have requested more."""
        return all(_is_finite(packed.part(answers, self._outputs[kind], index)) for kind in item.kinds)

    def _answer(self, item: Item, packed: Packed, answers: Answers, index: int) -> Answer:
        return {kind: self._own(item, packed.part(answers, self._outputs[kind], index), kind) for kind in item.kinds}

    def _own(self, item: Item, rows: Float32, kind: AnswerKind) -> Float32 | Sparse:
        """Returns a copy, because a view would keep the whole batch in memory as long as the answer."""
        if kind == "dense" and self._whole_numbers:
            return whole_numbers(rows)
        if kind != "sparse":
            return rows.copy()
        if self._outputs["sparse"] == "lexical":
            return lexical_weights(item.sequence.own_ids, rows[:, 0], self._unused)
        return splade_weights(rows[0], twice=self._log_twice)


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
    return bool(np.isfinite(numbers).all())


def _failure(error: InferenceFailed, cause: BaseException) -> InferenceFailed:
    error.__cause__ = cause  # for the log; the client receives the message only
    return error


@dataclass(frozen=True, slots=True)
class Packed:
    batch: TokenBatch
    rows: Sequence[slice]  # each item's rows of (T, .), without those of its prefix
    spans: Sequence[slice]  # each item's rows of (M, .)

    @property
    def pooled_rows(self) -> int:
        """M"""
        return int(self.spans[-1].stop)

    def part(self, answers: Answers, output: Output, index: int) -> Float32:
        """One item's rows of an output: a view."""
        return answers[output][(self.spans if output in POOLED else self.rows)[index]]


def pack(items: Sequence[Item], outputs: Mapping[AnswerKind, Output], alone: bool) -> Packed:
    """All tokens of all items, concatenated. A shared prefix occurs once, as a text before those that share it."""
    places: dict[tuple[Prefix, int], int] = {}  # by its adapter, too
    ids: list[Int32] = []
    types: list[Int32] = []
    parents: list[int] = []
    adapters: list[int] = []
    firsts: list[int] = []
    sequences = [item.sequence for item in items]
    for sequence in sequences:
        prefix = sequence.prefix
        if prefix is not None and (prefix, sequence.adapter) not in places:
            places[prefix, sequence.adapter] = len(ids)
            ids.append(prefix.ids)
            adapters.append(sequence.adapter)
            types.append(np.zeros_like(prefix.ids))
            parents.append(-1)
        firsts.append(len(ids))
        ids.append(sequence.own_ids)
        types.append(sequence.type_ids[len(sequence.ids) - len(ids[-1]) :])
        adapters.append(sequence.adapter)
        parents.append(-1 if prefix is None else places[prefix, sequence.adapter])
    cu_seqlens = np.zeros(len(ids) + 1, np.int32)
    np.cumsum([len(text) for text in ids], out=cu_seqlens[1:])
    texts = PackedTexts(
        ids=np.concatenate(ids),
        type_ids=np.concatenate(types),
        cu_seqlens=cu_seqlens,
        spans=_spans(sequences, firsts, cu_seqlens),
        keys=_keys(sequences, firsts, cu_seqlens),
        parents=np.array(parents, np.int32) if places else None,
        adapters=np.array(adapters, np.int32) if any(adapters) else None,
    )
    requested = frozenset(outputs[kind] for item in items for kind in item.kinds)
    bounds = cu_seqlens.tolist()
    counts = [sequence.pooled for sequence in sequences]
    return Packed(
        batch=TokenBatch(texts=texts, outputs=requested, alone=alone),
        rows=[slice(bounds[first], bounds[first + 1]) for first in firsts],
        spans=[slice(stop - count, stop) for stop, count in zip(accumulate(counts), counts, strict=True)],
    )


def _spans(sequences: Sequence[TokenSequence], firsts: Sequence[int], cu_seqlens: Int32) -> Int32 | None:
    """Each sequence's spans, in order, as rows of the batch; None: one for each text, and no text is only a prefix."""
    if all(one.spans is None for one in sequences) and len(sequences) == len(cu_seqlens) - 1:
        return None
    whole = [cu_seqlens[first : first + 2][None, :] for first in firsts]  # (1, 2) each
    return np.concatenate(
        [rows if one.spans is None else one.spans + rows[0, 0] for one, rows in zip(sequences, whole, strict=True)]
    ).astype(np.int32)


def _keys(sequences: Sequence[TokenSequence], firsts: Sequence[int], cu_seqlens: Int32) -> Int32 | None:
    if all(one.keys is None for one in sequences):
        return None
    keys = np.diff(cu_seqlens).astype(np.int32)
    for one, first in zip(sequences, firsts, strict=True):
        if one.keys is not None:
            keys[first] = one.keys
    return keys
