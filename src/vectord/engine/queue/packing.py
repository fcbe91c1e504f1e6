"""Packs items into the arrays that a backend reads, and finds each item's rows of its output. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from vectord.checkpoints.spec import Output
from vectord.compute.backends.base import POOLED, Answers, PackedTexts, TokenBatch
from vectord.engine.queue.batch import Item, Kind
from vectord.schema import Float32, Int32
from vectord.text.sequence import Prefix, TokenSequence


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


def pack(items: Sequence[Item], outputs: Mapping[Kind, Output], alone: bool) -> Packed:
    """All tokens of all items, concatenated. A shared prefix occurs once, as a text before those that share it."""
    places: dict[Prefix, int] = {}
    ids: list[Int32] = []
    types: list[Int32] = []
    parents: list[int] = []
    firsts: list[int] = []
    sequences = [item.sequence for item in items]
    for sequence in sequences:
        prefix = sequence.prefix
        if prefix is not None and prefix not in places:
            places[prefix] = len(ids)
            ids.append(prefix.ids)
            types.append(np.zeros_like(prefix.ids))
            parents.append(-1)
        firsts.append(len(ids))
        ids.append(sequence.own_ids)
        types.append(sequence.type_ids[len(sequence.ids) - len(ids[-1]) :])
        parents.append(-1 if prefix is None else places[prefix])
    cu_seqlens = np.zeros(len(ids) + 1, np.int32)
    np.cumsum([len(text) for text in ids], out=cu_seqlens[1:])
    texts = PackedTexts(
        ids=np.concatenate(ids),
        type_ids=np.concatenate(types),
        cu_seqlens=cu_seqlens,
        spans=_spans(sequences, firsts, cu_seqlens),
        keys=_keys(sequences, firsts, cu_seqlens),
        parents=np.array(parents, np.int32) if places else None,
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
