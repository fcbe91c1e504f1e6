"""Length groups are a permutation of the batch's rows with as little padding as so many rectangles can have."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vectord.ops.groups import Group, length_groups, text_order, unpack_rows

batches = st.lists(st.integers(1, 300), min_size=1, max_size=40)
group_counts = st.integers(1, 6)
steps = st.sampled_from([1, 8, 16])


def cu_seqlens_of(lengths: Sequence[int]) -> np.ndarray:
    return np.cumsum([0, *lengths], dtype=np.int32)


def places(groups: Sequence[Group]) -> int:
    return sum(group.rows.size for group in groups)


def fewest_places(lengths: Sequence[int], max_groups: int, step: int) -> int:
    """By trying every way to cut the sorted lengths."""
    padded = sorted(-(-length // step) * step for length in lengths)
    fewest = padded[-1] * len(padded)
    for count in range(1, min(max_groups, len(padded))):
        for cuts in combinations(range(1, len(padded)), count):
            bounds = (0, *cuts, len(padded))
            total = sum((b - a) * padded[b - 1] for a, b in pairwise(bounds))
            fewest = min(fewest, total)
    return fewest


@settings(deadline=None, max_examples=60)
@given(batches, group_counts, steps)
def test_every_row_has_one_place(lengths: list[int], max_groups: int, step: int) -> None:
    """Each text is in one group, its rows in order; what is padded repeats its first row and is marked."""
    cu_seqlens = cu_seqlens_of(lengths)
    groups = length_groups(cu_seqlens, max_groups, step)
    assert 1 <= len(groups) <= max_groups
    seen = []
    for group in groups:
        assert group.rows.dtype == group.texts.dtype == np.int32
        assert group.rows.shape == group.valid.shape
        for text, rows, valid in zip(group.texts, group.rows, group.valid, strict=True):
            np.testing.assert_array_equal(valid, np.arange(rows.size) < lengths[text])
            np.testing.assert_array_equal(rows[valid], np.arange(cu_seqlens[text], cu_seqlens[text + 1]))
            assert (rows[~valid] == cu_seqlens[text]).all()
            seen.append(int(text))
    assert sorted(seen) == list(range(len(lengths)))


@settings(deadline=None, max_examples=60)
@given(batches, group_counts, steps)
def test_group_is_as_long_as_its_longest_text(lengths: list[int], max_groups: int, step: int) -> None:
    """Rounded up to the step; groups come shortest first."""
    groups = length_groups(cu_seqlens_of(lengths), max_groups, step)
    widths = [group.rows.shape[1] for group in groups]
    assert widths == [-(-max(lengths[text] for text in group.texts) // step) * step for group in groups]
    assert widths == sorted(widths)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 100), min_size=1, max_size=8), st.integers(1, 4), steps)
def test_padding_is_the_least_possible(lengths: list[int], max_groups: int, step: int) -> None:
    """No other way to cut the sorted texts into so many groups has fewer places."""
    groups = length_groups(cu_seqlens_of(lengths), max_groups, step)
    assert places(groups) == fewest_places(lengths, max_groups, step)


@settings(deadline=None, max_examples=60)
@given(batches, group_counts, steps, st.integers(0, 20))
def test_unpack_undoes_the_grouping(lengths: list[int], max_groups: int, step: int, extra: int) -> None:
    """Rows gathered into groups, laid end to end and gathered back are the rows; added rows point to place 0."""
    cu_seqlens = cu_seqlens_of(lengths)
    total = int(cu_seqlens[-1])
    groups = length_groups(cu_seqlens, max_groups, step)
    laid_out = np.concatenate([group.rows.ravel() for group in groups])
    unpack = unpack_rows(groups, cu_seqlens, total + extra)
    assert unpack.dtype == np.int32
    np.testing.assert_array_equal(laid_out[unpack[:total]], np.arange(total))
    np.testing.assert_array_equal(unpack[total:], np.zeros(extra))


@settings(deadline=None, max_examples=60)
@given(batches, group_counts)
def test_text_order_undoes_the_sorting(lengths: list[int], max_groups: int) -> None:
    """What is computed text by text in the groups comes back in the batch's order."""
    groups = length_groups(cu_seqlens_of(lengths), max_groups, 16)
    by_group = np.concatenate([[lengths[text] for text in group.texts] for group in groups])
    np.testing.assert_array_equal(by_group[text_order(groups)], lengths)


def test_one_long_text_does_not_pad_the_others() -> None:
    """The case that equal groups get wrong: the outlier stands alone."""
    groups = length_groups(cu_seqlens_of([20] * 15 + [256]), 4, 16)
    assert [group.rows.shape for group in groups] == [(15, 32), (1, 256)]


def test_an_empty_batch_is_our_own_mistake() -> None:
    """Nobody can send one: the scheduler makes batches of at least one text."""
    with pytest.raises(AssertionError):
        length_groups(np.zeros(1, np.int32), 4, 16)
