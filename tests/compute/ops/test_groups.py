"""Length groups are a permutation of the batch's rows with the least cost for their number."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models import pack_texts

from vectord.compute.ops.base import PackedTexts
from vectord.compute.ops.groups import (
    PAIRS_A_PLACE,
    PIECE_ROWS,
    AttentionPieces,
    Group,
    Rectangle,
    Runs,
    attending_pieces,
    length_groups,
    pad,
    spans_are_whole,
    texts_of_spans,
)
from vectord.compute.ops.numpy import pack

batches = st.lists(st.integers(1, 300), min_size=1, max_size=40)
group_counts = st.integers(1, 6)
steps = st.sampled_from([1, 8, 16])


def texts_of(lengths: Sequence[int], **options: Sequence[int]) -> PackedTexts:
    arrays = {name: np.array(values, np.int32) for name, values in options.items()}
    return pack_texts(*([0] * length for length in lengths), **arrays)


@st.composite
def texts_with_keys_and_parents(draw: st.DrawFn, longest: int = 40) -> PackedTexts:
    """Texts, some with fewer keys than rows, and some with an earlier text before them."""
    lengths = draw(st.lists(st.integers(1, longest), min_size=1, max_size=6))
    keys = [draw(st.integers(1, length)) for length in lengths]
    parents: list[int] = []
    for i in range(len(lengths)):
        parents.append(draw(st.sampled_from([-1, *(j for j in range(i) if parents[j] < 0)])))
    return texts_of(lengths, keys=keys, parents=parents)


def grouped(lengths: Sequence[int], max_groups: int, step: int) -> list[Group]:
    return length_groups(attending_pieces(texts_of(lengths), None), max_groups, step)


def cost(group: Group) -> int:
    """The cost of moving places, and of the scores of the rectangles."""
    queries, keys = group.queries.rows, group.keys.rows
    return len(queries) * (PAIRS_A_PLACE * (queries.shape[1] + keys.shape[1]) + queries.shape[1] * keys.shape[1])


def least_cost(sizes: Sequence[tuple[int, int]], max_groups: int, step: int) -> int:
    """The least cost of `sizes`, query and key lengths, over every way to cut them in order."""
    padded = sorted((-(-queries // step) * step, -(-keys // step) * step) for queries, keys in sizes)
    least = 2**62
    for count in range(min(max_groups, len(padded))):
        for cuts in combinations(range(1, len(padded)), count):
            total = 0
            for a, b in pairwise((0, *cuts, len(padded))):
                queries, keys = (max(size[side] for size in padded[a:b]) for side in (0, 1))
                total += (b - a) * (PAIRS_A_PLACE * (queries + keys) + queries * keys)
            least = min(least, total)
    return least


def rows_of(rectangle: Rectangle) -> list[list[int]]:
    """The rows of each piece, without padding."""
    return [rows[valid].tolist() for rows, valid in zip(rectangle.rows, rectangle.valid, strict=True)]


# --- groups ---------------------------------------------------------------------------------------------------


@given(batches, group_counts, steps)
def test_every_row_has_one_place(lengths: list[int], max_groups: int, step: int) -> None:
    """Each text is in one group with its rows in order; padding repeats its first row and is marked."""
    cu_seqlens = texts_of(lengths).cu_seqlens
    groups = grouped(lengths, max_groups, step)
    assert 1 <= len(groups) <= max_groups
    seen = []
    for group in groups:
        assert group.keys is group.queries
        places = group.queries
        assert places.rows.dtype == group.pieces.dtype == np.int32
        assert places.rows.shape == places.valid.shape
        for text, rows, valid in zip(group.pieces, places.rows, places.valid, strict=True):
            np.testing.assert_array_equal(valid, np.arange(rows.size) < lengths[text])
            np.testing.assert_array_equal(rows[valid], np.arange(cu_seqlens[text], cu_seqlens[text + 1]))
            assert (rows[~valid] == cu_seqlens[text]).all()
            seen.append(int(text))
    assert sorted(seen) == list(range(len(lengths)))


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1, max_size=8), st.integers(1, 4), steps)
def test_the_cost_is_the_least_possible(sizes: list[tuple[int, int]], max_groups: int, step: int) -> None:
    """No other way to cut the sorted texts into as many groups costs less, with equal and different keys."""
    queries, keys = (np.array(lengths, np.int32) for lengths in zip(*sizes, strict=True))
    starts = np.zeros_like(queries)
    own = Runs(starts, queries)
    groups = length_groups(AttentionPieces(own, own), max_groups, step)
    assert sum(map(cost, groups)) == least_cost([(length, length) for length, _ in sizes], max_groups, step)
    groups = length_groups(AttentionPieces(own, Runs(starts, keys)), max_groups, step)
    assert sum(map(cost, groups)) == least_cost(sizes, max_groups, step)


# --- what attends to what -------------------------------------------------------------------------------------


@given(texts_with_keys_and_parents(), group_counts, steps)
def test_keys_equal_the_reference(texts: PackedTexts, max_groups: int, step: int) -> None:
    """A text attends to its parent's rows, then to its own keys, however it is grouped."""
    want = [text.keys.tolist() for text in pack(texts).layout.texts]
    found = {}
    for group in length_groups(attending_pieces(texts, None), max_groups, step):
        found.update(zip(group.pieces.tolist(), rows_of(group.keys), strict=True))
        assert group.keys.rows.shape[1] % step == 0
        for text, rows, valid in zip(group.pieces, group.keys.rows, group.keys.valid, strict=True):
            assert (rows[~valid] == texts.cu_seqlens[text]).all()  # its own first row, not another text's
    assert [found[text] for text in range(len(want))] == want


@settings(max_examples=40)
@given(texts_with_keys_and_parents(longest=4 * PIECE_ROWS), st.sampled_from([0, 1, 64, 2 * PIECE_ROWS]), group_counts)
def test_windows_cut_texts_into_pieces(texts: PackedTexts, window: int, max_groups: int) -> None:
    """Each row is a query once; its piece has every key within reach and no other text's, and stays small."""
    layout = pack(texts).layout
    owner = np.repeat(np.arange(len(layout.texts)), np.diff(texts.cu_seqlens))
    places = np.arange(texts.ids.size)
    piece_rows = max(PIECE_ROWS, 2 * window)
    seen: list[int] = []
    for group in length_groups(attending_pieces(texts, window), max_groups, 1):
        for queries, keys in zip(rows_of(group.queries), rows_of(group.keys), strict=True):
            assert len(queries) <= piece_rows
            text = layout.texts[owner[queries[0]]]
            begin, end = queries[0] - window, queries[-1] + window
            near = [row for row in text.keys if owner[row] != owner[queries[0]] or begin <= places[row] <= end]
            extra = set(keys) - set(near)
            assert set(near) <= set(keys) <= set(text.keys.tolist())
            assert keys, "a softmax over nothing has no answer"
            assert len(extra) <= 1 or len(keys) <= piece_rows + len(near)
            seen += queries
    assert sorted(seen) == list(range(texts.ids.size))


# --- one rectangle ---


@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=12), step=st.sampled_from([1, 16]))
def test_every_row_is_there_once_and_found_again(lengths: list[int], step: int) -> None:
    """Places are rows of the right text in order, padded at the end, and `places` is the inverse."""
    texts = pack_texts(*([1] * length for length in lengths))
    padded = pad(texts, step)
    assert padded.rows.shape == (len(lengths), -(-max(lengths) // step) * step)
    np.testing.assert_array_equal(padded.rows.ravel()[padded.places], np.arange(sum(lengths)))
    np.testing.assert_array_equal(padded.filled.sum(axis=1), lengths)
    np.testing.assert_array_equal(padded.rows[padded.filled], np.arange(sum(lengths)))
    np.testing.assert_array_equal(padded.seen, padded.filled)


def test_padding_repeats_the_texts_own_first_row() -> None:
    """A NaN of another text would pass through the mask."""
    padded = pad(pack_texts([1, 2], [3, 4, 5]))
    assert padded.rows.tolist() == [[0, 1, 0], [2, 3, 4]]


def test_the_length_is_rounded_up_to_the_limit() -> None:
    """A network has no positions after the last; longer texts are the caller's error."""
    assert pad(pack_texts([1] * 50), 16, most=60).rows.shape == (1, 60)
    assert pad(pack_texts([1] * 50), 16, most=40).rows.shape == (1, 50)


def test_only_keys_are_seen() -> None:
    """Rows that are not attended to are still filled."""
    padded = pad(pack_texts([1, 2, 3], [4, 5], keys=np.array([1, 2], np.int32)))
    assert padded.seen.tolist() == [[True, False, False], [True, True, False]]
    assert padded.filled.tolist() == [[True, True, True], [True, True, False]]


def test_a_parents_rows_come_first() -> None:
    """A text with a parent reads its rows again, and only its own rows have results."""
    texts = pack_texts([1, 2], [3], [4, 5, 6], [7], parents=np.array([-1, 0, 0, -1], np.int32))
    padded = pad(texts)
    assert padded.rows.tolist() == [[0, 1, 0, 0, 0], [0, 1, 2, 2, 2], [0, 1, 3, 4, 5], [6, 6, 6, 6, 6]]
    assert padded.filled.sum(axis=1).tolist() == [2, 3, 5, 1]
    np.testing.assert_array_equal(padded.rows.ravel()[padded.places], np.arange(7))


@pytest.mark.parametrize(
    ("spans", "texts", "whole"),
    [
        (None, [0, 1, 2], True),
        ([[0, 2], [2, 5], [5, 6]], [0, 1, 2], True),
        ([[5, 6], [0, 2]], [2, 0], True),
        ([[0, 1], [1, 2]], [0, 0], False),
        ([[3, 5]], [1], False),
    ],
    ids=["none", "all", "some", "parts", "the end"],
)
def test_spans_belong_to_texts(spans: list[list[int]] | None, texts: list[int], whole: bool) -> None:
    """The text of each span, and whether it is the whole text."""
    packed = pack_texts([1, 2], [3, 4, 5], [6], spans=None if spans is None else np.array(spans, np.int32))
    assert texts_of_spans(packed).tolist() == texts
    assert spans_are_whole(packed) is whole
