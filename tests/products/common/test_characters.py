"""The guard of characters a text."""

from __future__ import annotations

import pytest

from vectord.errors import TooManyCharacters
from vectord.products.common.inputs import check_characters


def test_the_first_text_over_the_limit_is_named():
    """In Simple Inference Server's words, with the numbers that other dialects word themselves."""
    with pytest.raises(TooManyCharacters) as caught:
        check_characters(["ok", "x" * 20_001, "x" * 30_000], 20_000, "input")
    error = caught.value
    assert error.message == "Input at index 1 exceeds max length 20000 chars"
    assert (error.field, error.index, error.limit, error.given) == ("input", 1, 20_000, 20_001)


@pytest.mark.parametrize(
    ("inputs", "limit"),
    [
        pytest.param(["x" * 5], 5, id="just as many"),
        pytest.param(["x" * 100], None, id="no limit"),
        pytest.param([[1] * 100], 5, id="ids have no characters"),
        pytest.param(["ü" * 5], 5, id="characters, not bytes"),
    ],
)
def test_what_passes(inputs, limit):
    """Anything within the limit, and what it does not count."""
    check_characters(inputs, limit, "input")
