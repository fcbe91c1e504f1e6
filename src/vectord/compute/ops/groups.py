"""Length groups: a packed batch as a few rectangles, for op sets whose attention needs rectangles; and as a single one
(`pad`), for ONNX graphs and transformers' classes, which take padded (texts, length) and a mask.

A packed batch is one row of T tokens; attention needs (texts, length). Padding every text to the longest wastes most
of the work on mixed lengths, so the texts go into a few groups of similar length and are padded inside their group
only. Where attention has a window, long texts are cut into pieces that attend to their surroundings only. Index
arithmetic in numpy, shared by the op sets; runs on the thread that calls `forward`, once per batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from vectord.compute.ops.base import PackedTexts, Window
from vectord.schema import Int32

PAIRS_A_PLACE = 64  # scores with the cost of moving one place there and back
PIECE_ROWS = 256  # of a text under a narrow window: shorter pieces mostly reread their surroundings


class Runs(msgspec.Struct, frozen=True):
    """P runs of adjacent rows."""

    starts: Int32  # (P,) row numbers
    lengths: Int32  # (P,)


class AttentionPieces(msgspec.Struct, frozen=True):
    """P runs of rows, and the rows that each attends to."""

    queries: Runs
    keys: Runs  # `queries` itself if every piece attends to itself
    parents: Runs | None = None  # rows attended to before `keys`; length 0: none


class Rectangle(msgspec.Struct, frozen=True):
    """n runs of rows, each padded to L places."""

    rows: Int32  # (n, L) row numbers into (T, H); a padded place repeats the first row of its piece's own run
    valid: npt.NDArray[np.bool_]  # (n, L) False on padded places


class Group(msgspec.Struct, frozen=True):
    """n pieces of similar length."""

    pieces: Int32  # (n,) which pieces of the batch
    queries: Rectangle
    keys: Rectangle  # `queries` itself if every piece attends to itself


def positions(texts: PackedTexts) -> Int32:
    """Each row's position in its text, after the text's parent. (T,)"""
    shift = texts.cu_seqlens[:-1]
    if texts.parents is not None:
        shift = shift - _parents(texts, texts.parents).lengths
    return np.arange(texts.ids.size, dtype=np.int32) - np.repeat(shift, np.diff(texts.cu_seqlens))


def pooled_pieces(texts: PackedTexts) -> AttentionPieces:
    spans = texts.pooled
    runs = Runs(spans[:, 0], spans[:, 1] - spans[:, 0])
    return AttentionPieces(runs, runs)


def attending_pieces(texts: PackedTexts, window: Window | None) -> AttentionPieces:
    """Every row as a query: in whole texts, in blocks, or where a window excludes most keys of a text, in pieces."""
    if window == "block":
        ends = texts.blocks
        blocks = Runs(ends[:-1], np.diff(ends))
        return AttentionPieces(blocks, blocks)
    starts, lengths = texts.cu_seqlens[:-1], np.diff(texts.cu_seqlens)
    queries = Runs(starts, lengths)
    keys = queries if texts.keys is None else Runs(starts, texts.keys)
    parents = None if texts.parents is None else _parents(texts, texts.parents)
    piece_rows = PIECE_ROWS if window is None else max(PIECE_ROWS, 2 * window)
    if window is None or lengths.max() <= piece_rows:
        return AttentionPieces(queries, keys, parents)
    counts = -(-lengths // piece_rows)
    text = np.repeat(np.arange(lengths.size), counts)  # (P,) which text a piece is of
    nth = np.arange(text.size) - np.repeat(np.cumsum(counts) - counts, counts)  # (P,) which piece of its text
    rows = -(-lengths // counts)  # (N,) of each piece but the last: even parts, for few distinct lengths
    begin = (nth * rows[text]).astype(np.int32)
    end = np.minimum(begin + rows[text], lengths[text])
    first = np.minimum(np.maximum(begin - window, 0), keys.lengths[text] - 1)
    stop = np.minimum(end + window, keys.lengths[text])
    return AttentionPieces(
        Runs(starts[text] + begin, end - begin),
        Runs(starts[text] + first, stop - first),
        None if parents is None else Runs(parents.starts[text], parents.lengths[text]),
    )


def _parents(texts: PackedTexts, parents: Int32) -> Runs:
    lengths = np.where(parents < 0, 0, np.diff(texts.cu_seqlens)[parents])
    return Runs(texts.cu_seqlens[:-1][parents], lengths)


def length_groups(pieces: AttentionPieces, max_groups: int, length_step: int) -> list[Group]:
    """Put P >= 1 pieces into at most `max_groups` groups with the least total cost of padding.

    A group's queries have as many places as the longest of them, rounded up to `length_step`; so have its keys.
    Groups are sorted by the length of their queries, and so are pieces inside a group.
    """
    lengths = pieces.queries.lengths
    assert lengths.size, "a batch has at least one text"
    queries = _round_up(lengths, length_step)
    if pieces.keys is pieces.queries and pieces.parents is None:
        keys = queries
        order = np.argsort(lengths, kind="stable").astype(np.int32)
    else:
        keys = _round_up(_key_lengths(pieces), length_step)
        order = np.lexsort((keys, queries)).astype(np.int32)
    groups = []
    for first, stop in _cuts(queries[order], keys[order], max_groups):
        chosen = order[first:stop]
        own = others = _rectangle(pieces.queries, None, chosen, int(queries[chosen].max()))
        if keys is not queries:
            others = _rectangle(pieces.keys, pieces.parents, chosen, int(keys[chosen].max()))
        groups.append(Group(chosen, own, others))
    return groups


def keys_end_to_end(texts: PackedTexts) -> tuple[Int32, Int32]:
    """The rows that each text attends to, all texts end to end, and where each ends: (K,), (N + 1,) from 0."""
    pieces = attending_pieces(texts, None)
    lengths = _key_lengths(pieces)
    rectangle = _rectangle(pieces.keys, pieces.parents, np.arange(lengths.size, dtype=np.int32), int(lengths.max()))
    return rectangle.rows[rectangle.valid], np.append(0, np.cumsum(lengths)).astype(np.int32)


def _key_lengths(pieces: AttentionPieces) -> Int32:
    return pieces.keys.lengths if pieces.parents is None else pieces.keys.lengths + pieces.parents.lengths


def _round_up(lengths: Int32, step: int) -> Int32:
    rounded: Int32 = -(-lengths // step) * step
    return rounded


def _rectangle(runs: Runs, before: Runs | None, chosen: Int32, places: int) -> Rectangle:
    """The `chosen` runs, each after its run of `before` if there is one, padded to `places`."""
    starts, lengths = runs.starts[chosen, None], runs.lengths[chosen, None]
    place = np.arange(places, dtype=np.int32)
    # Padding repeats the text's own first row: a NaN of another text would pass through the mask.
    if before is None:
        valid = place < lengths
        rows = starts + np.where(valid, place, 0)
    else:
        skipped = before.lengths[chosen, None]
        valid = place < skipped + lengths
        own = starts + np.where(valid, place - skipped, 0)
        rows = np.where(place < skipped, before.starts[chosen, None] + place, own)
    return Rectangle(rows.astype(np.int32, copy=False), valid)


def _cuts(queries: Int32, keys: Int32, max_groups: int) -> list[tuple[int, int]]:
    """The slices of `queries` (P,), which ascend, and `keys` (P,) whose groups have the least total cost.

    Exact, by dynamic programming over the distinct sizes: best[j] is the least cost of g groups for the sizes 0..j.
    """
    changes = (np.diff(queries) != 0) | (np.diff(keys) != 0)
    ends = np.append(np.flatnonzero(changes) + 1, queries.size)  # (U,) one past the last piece of a size
    begins = np.append(0, ends[:-1])
    above = np.tri(ends.size, k=-1, dtype=bool)  # (U, U): i > j, no group
    longest = queries[ends - 1].astype(np.int64)  # (U,) of the queries of i..j
    longest_key = np.maximum.accumulate(np.where(above, 0, keys[ends - 1]), axis=1)  # (U, U) of the keys of i..j
    costs = (ends - begins[:, None]) * (PAIRS_A_PLACE * (longest + longest_key) + longest * longest_key)
    costs = np.where(above, np.iinfo(np.int64).max // 2, costs)  # (U, U) of one group of the sizes i..j
    best = costs[0]
    choices = []
    for _ in range(min(max_groups, ends.size) - 1):
        totals = costs + np.append(0, best[:-1])[:, None]
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


def unpack_rows(groups: Sequence[Group], total: int) -> Int32:
    """The place of each packed row among the groups' query places, laid end to end: the way back after attention.

    Returns (total,), total >= T; rows from T on belong to no text and point to place 0.
    """
    unpack = np.zeros(total, np.int32)
    offset = 0
    for group in groups:
        places = np.flatnonzero(group.queries.valid)
        unpack[group.queries.rows.ravel()[places]] = places + offset
        offset += group.queries.valid.size
    return unpack


def piece_order(groups: Sequence[Group]) -> Int32:
    """The place of each piece among the groups' pieces, laid end to end. Returns (P,)."""
    pieces = np.concatenate([group.pieces for group in groups])
    order = np.empty_like(pieces)
    order[pieces] = np.arange(pieces.size, dtype=np.int32)
    return order


class Padded(msgspec.Struct, frozen=True):
    """N texts, each after its parent if it has one, padded at the end to L places."""

    rows: Int32  # (N, L) row numbers into (T, H); a padded place repeats its text's first row
    filled: npt.NDArray[np.bool_]  # (N, L) False on padded places
    seen: npt.NDArray[np.bool_]  # (N, L) which places are attended to
    places: Int32  # (T,) the place of each row among the N * L places: the way back


def pad(texts: PackedTexts, length_step: int = 1, most: int = 2**31 - 1) -> Padded:
    """Pad all texts to the longest length, rounded up to `length_step` but at most `most`."""
    pieces = attending_pieces(texts, None)
    starts, lengths = pieces.queries.starts, pieces.queries.lengths
    before = np.zeros_like(lengths) if pieces.parents is None else pieces.parents.lengths  # (N,) of each text's parent
    longest = int((before + lengths).max())
    length = max(longest, min(-(-longest // length_step) * length_step, most))
    every = np.arange(lengths.size, dtype=np.int32)
    whole = _rectangle(pieces.queries, pieces.parents, every, length)
    seen = np.arange(length, dtype=np.int32) < (before + pieces.keys.lengths)[:, None]
    places = np.arange(texts.ids.size, dtype=np.int32) + np.repeat(every * length + before - starts, lengths)
    return Padded(whole.rows, whole.valid, seen, places.astype(np.int32))


def texts_of_spans(texts: PackedTexts) -> Int32:
    """Return the text of each span. (M,)"""
    found: Int32 = (np.searchsorted(texts.cu_seqlens, texts.pooled[:, 0], side="right") - 1).astype(np.int32)
    return found


def spans_are_whole(texts: PackedTexts) -> bool:
    """Return whether each span is a whole text: networks with their own pooling support nothing else."""
    found = texts_of_spans(texts)
    return np.array_equal(texts.pooled, np.stack([texts.cu_seqlens[found], texts.cu_seqlens[found + 1]], axis=1))
