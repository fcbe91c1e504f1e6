"""Booleans that came as words."""

from __future__ import annotations

import pytest

from vectord.errors import InvalidField
from vectord.products.common.inputs import read_switch


@pytest.mark.parametrize(
    ("value", "said"),
    [(True, True), (False, False), ("true", True), ("False", False), ("TRUE", True), (None, None)],
)
def test_a_boolean_or_its_word(value, said):
    """In capitals or not; null is what was not said, which is not false."""
    assert read_switch(value, "truncate") is said


@pytest.mark.parametrize("word", ["", "yes", "1", " true", "none", "off"])
def test_no_other_word_is_taken_for_either(word):
    """The error names the field and shows nothing of what came."""
    with pytest.raises(InvalidField) as caught:
        read_switch(word, "truncate")
    assert (caught.value.field, caught.value.message) == ("truncate", "`truncate` must be true or false.")
