"""Padding: a packed batch as a rectangle, and the way back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models import pack_texts

from vectord.compute.ops.padding import pad, spans_are_whole, texts_of_spans

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=12)


@settings(deadline=None)
@given(lengths=LENGTHS, step=st.sampled_from([1, 16]))
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
