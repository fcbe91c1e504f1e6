"""A packed batch as one rectangle, for networks that take padded (texts, length) and a mask.

The backends on ONNX graphs and on transformers use it.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from vectord.compute.ops.base import PackedTexts
from vectord.schema import Int32


class Padded(msgspec.Struct, frozen=True):
    """N texts, each after its parent if it has one, padded at the end to L places."""

    rows: Int32  # (N, L) row numbers into (T, H); a padded place repeats its text's first row
    filled: npt.NDArray[np.bool_]  # (N, L) False on padded places
    seen: npt.NDArray[np.bool_]  # (N, L) which places are attended to
    places: Int32  # (T,) the place of each row among the N * L places: the way back


def pad(texts: PackedTexts, length_step: int = 1, most: int = 2**31 - 1) -> Padded:
    """Pad all texts to the longest length, rounded up to `length_step` but at most `most`."""
    starts, lengths = texts.cu_seqlens[:-1], np.diff(texts.cu_seqlens)
    before = np.zeros_like(lengths)  # (N,) of each text's parent
    if texts.parents is not None:
        before = np.where(texts.parents < 0, 0, lengths[texts.parents])
    longest = int((before + lengths).max())
    length = max(longest, min(-(-longest // length_step) * length_step, most))
    place = np.arange(length, dtype=np.int32)
    own = place - before[:, None]  # (N, L) counted from the text's own first row
    filled = own < lengths[:, None]
    rows = starts[:, None] + np.where(filled, own, 0)
    if texts.parents is not None:
        rows = np.where(own < 0, starts[texts.parents, None] + place, rows)
    keys = lengths if texts.keys is None else texts.keys
    shift = np.arange(len(lengths), dtype=np.int32) * length + before - starts
    places = np.arange(texts.ids.size, dtype=np.int32) + np.repeat(shift, lengths)
    return Padded(rows.astype(np.int32), filled, own < keys[:, None], places.astype(np.int32))


def texts_of_spans(texts: PackedTexts) -> Int32:
    """Return the text of each span. (M,)"""
    found: Int32 = (np.searchsorted(texts.cu_seqlens, texts.pooled[:, 0], side="right") - 1).astype(np.int32)
    return found


def spans_are_whole(texts: PackedTexts) -> bool:
    """Return whether each span is a whole text: networks with their own pooling support nothing else."""
    found = texts_of_spans(texts)
    return np.array_equal(texts.pooled, np.stack([texts.cu_seqlens[found], texts.cu_seqlens[found + 1]], axis=1))
