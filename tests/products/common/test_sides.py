"""Which end is cut, as TEI's clients say it."""

from __future__ import annotations

import pytest

from vectord.errors import InvalidField
from vectord.products.common.inputs import read_side


@pytest.mark.parametrize(
    ("word", "side"), [(None, "right"), ("Right", "right"), ("right", "right"), ("Left", "left"), ("LEFT", "left")]
)
def test_a_side_in_capitals_or_not(word, side):
    """TEI wrote them with a capital, and reads both."""
    assert read_side(word) == side


@pytest.mark.parametrize("word", ["", "middle", "right "])
def test_no_other_word_is_a_side(word):
    """An empty one neither."""
    with pytest.raises(InvalidField) as caught:
        read_side(word)
    assert caught.value.field == "truncation_direction"
