"""Length groups: how an op set that can only attend over rectangles sees a packed batch.

A packed batch is one row of T tokens; attention wants (texts, length). Padding every text to the longest wastes
most of the work on mixed lengths, so the texts go into a few groups of like length and are padded only inside
their group (measured: 24 k tokens/s against 6.6 k). Pure index arithmetic in numpy, shared by the op sets; runs on
the thread that calls `forward`, once a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Group:
    """n texts of like length, each padded to L places."""

    texts: Int32  # (n,) which texts of the batch
    rows: Int32  # (n, L) row numbers into (T, H); a padded place repeats its text's first row
    valid: npt.NDArray[np.bool_]  # (n, L) False on padded places


def length_groups(cu_seqlens: Int32, max_groups: int, length_step: int) -> list[Group]:
    """Put the texts of a batch into at most `max_groups` groups, so that the padded places are as few as can be.

    cu_seqlens (N + 1,) from 0 to T, N >= 1, no text empty. Each group's L is its longest text rounded up to
    `length_step`. Groups come shortest first, and inside a group texts keep the order of their lengths.
    """
    starts = cu_seqlens[:-1]
    lengths = np.diff(cu_seqlens)
    assert lengths.size, "a batch has at least one text"
    order = np.argsort(lengths, kind="stable").astype(np.int32)
    padded = -(-lengths[order] // length_step) * length_step
    groups = []
    for first, stop in _cuts(padded, max_groups):
        texts = order[first:stop]
        places = np.arange(padded[stop - 1], dtype=np.int32)
        valid = places < lengths[texts, None]
        # Padding repeats the text's own first row: another text's could carry its NaN over, mask or no mask.
        rows = (starts[texts, None] + np.where(valid, places, 0)).astype(np.int32, copy=False)
        groups.append(Group(texts, rows, valid))
    return groups


def _cuts(padded: Int32, max_groups: int) -> list[tuple[int, int]]:
    """The slices of the ascending `padded` (N,) whose groups hold the fewest places together.

    Exact, by dynamic programming over the distinct lengths, of which rounding leaves few: best[j] is the least
    number of places that g groups need for the lengths 0..j.
    """
    ends = np.append(np.flatnonzero(np.diff(padded)) + 1, padded.size)  # (U,) one past the last text of a length
    begins = np.append(0, ends[:-1])
    places = (ends - begins[:, None]) * padded[ends - 1]  # (U, U): one group of the lengths i..j
    places = np.where(np.tri(ends.size, k=-1, dtype=bool), np.iinfo(np.int64).max // 2, places)
    best = places[0]
    choices = []
    for _ in range(min(max_groups, ends.size) - 1):
        totals = places + np.append(0, best[:-1])[:, None]
        choices.append(totals.argmin(axis=0))
        best = totals.min(axis=0)
    cuts = []
    last = ends.size - 1
    for choice in reversed(choices):
        first = int(choice[last])
        cuts.append((int(begins[first]), int(ends[last])))
        if first == 0:
            return cuts[::-1]
        last = first - 1
    cuts.append((0, int(ends[last])))
    return cuts[::-1]


def unpack_rows(groups: Sequence[Group], cu_seqlens: Int32, total: int) -> Int32:
    """Where each packed row lies among the groups' places, laid end to end: the way back after attention.

    Returns (total,), total >= T; rows from T on belong to no text and point to place 0.
    """
    unpack = np.zeros(total, np.int32)
    offset = 0
    for group in groups:
        places = np.flatnonzero(group.valid)
        unpack[group.rows.ravel()[places]] = places + offset
        offset += group.valid.size
    return unpack


def text_order(groups: Sequence[Group]) -> Int32:
    """Where each text lies among the groups' texts, laid end to end. Returns (N,)."""
    texts = np.concatenate([group.texts for group in groups])
    order = np.empty_like(texts)
    order[texts] = np.arange(texts.size, dtype=np.int32)
    return order
