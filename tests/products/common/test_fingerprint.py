"""The form of a fingerprint."""

from __future__ import annotations

import pytest

from vectord.errors import InvalidField
from vectord.products.common.inputs import read_fingerprint


@pytest.mark.parametrize(
    "value", [None, "0", "0123456789abcdef", "0123456789abcdef:256", "0123456789abcdef:256:raw", "f:raw"]
)
def test_a_fingerprint_is_taken_as_it_is(value):
    """Ours, with a width or without, of vectors that are normalised or raw."""
    assert read_fingerprint(value, "f") == value


@pytest.mark.parametrize("value", ["", "f" * 33, "f:12345678", "f:raw:8", "F", "g", "a b", "a\n", "\u0660"], ids=ascii)
def test_anything_else_is_refused_by_name(value):
    """The field is named, the value is not."""
    with pytest.raises(InvalidField) as caught:
        read_fingerprint(value, "x-header")
    assert caught.value.field == "x-header"
    assert "`x-header`" in caught.value.message
