"""Items end to end as a backend reads them, and each item's part of what it gave. Pure; called by execution.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from vectord.checkpoints.spec import Output
from vectord.compute.backends.base import POOLED, Answers, PackedTexts, TokenBatch
from vectord.engine.queue.batch import Item, Kind, Prefix
from vectord.schema import Float32, Int32


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
        """What belongs to one item: a view."""
        return answers[output][(self.spans if output in POOLED else self.rows)[index]]


def pack(items: Sequence[Item], outputs: Mapping[Kind, Output], alone: bool) -> Packed:
    """All tokens of all items end to end; a prefix that several share comes once, as a text before them."""
    places: dict[Prefix, int] = {}
    ids: list[Int32] = []
    types: list[Int32] = []
    parents: list[int] = []
    firsts: list[int] = []
    for item in items:
        if item.prefix is not None and item.prefix not in places:
            places[item.prefix] = len(ids)
            ids.append(item.prefix.ids)
            types.append(np.zeros_like(item.prefix.ids))
            parents.append(-1)
        firsts.append(len(ids))
        ids.append(item.ids)
        types.append(item.type_ids)
        parents.append(-1 if item.prefix is None else places[item.prefix])
    cu_seqlens = np.zeros(len(ids) + 1, np.int32)
    np.cumsum([len(text) for text in ids], out=cu_seqlens[1:])
    texts = PackedTexts(
        ids=np.concatenate(ids),
        type_ids=np.concatenate(types),
        cu_seqlens=cu_seqlens,
        spans=_spans(items, firsts, cu_seqlens),
        keys=_keys(items, firsts, cu_seqlens),
        parents=np.array(parents, np.int32) if places else None,
    )
    asked = frozenset(outputs[kind] for item in items for kind in item.kinds)
    bounds = cu_seqlens.tolist()
    counts = [1 if item.spans is None else len(item.spans) for item in items]
    return Packed(
        batch=TokenBatch(texts=texts, outputs=asked, alone=alone),
        rows=[slice(bounds[first], bounds[first + 1]) for first in firsts],
        spans=[slice(stop - count, stop) for stop, count in zip(accumulate(counts), counts, strict=True)],
    )


def _spans(items: Sequence[Item], firsts: Sequence[int], cu_seqlens: Int32) -> Int32 | None:
    """Each item's spans, in order, as rows of the batch; None: one a text, and no text is a mere prefix."""
    if all(item.spans is None for item in items) and len(items) == len(cu_seqlens) - 1:
        return None
    whole = [cu_seqlens[first : first + 2][None, :] for first in firsts]  # (1, 2) each
    return np.concatenate(
        [rows if item.spans is None else item.spans + rows[0, 0] for item, rows in zip(items, whole, strict=True)]
    ).astype(np.int32)


def _keys(items: Sequence[Item], firsts: Sequence[int], cu_seqlens: Int32) -> Int32 | None:
    if all(item.keys is None for item in items):
        return None
    keys = np.diff(cu_seqlens).astype(np.int32)
    for item, first in zip(items, firsts, strict=True):
        if item.keys is not None:
            keys[first] = item.keys
    return keys
