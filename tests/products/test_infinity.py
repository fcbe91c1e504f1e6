"""infinity: the longest text. cases/infinity.json has the rest."""

from __future__ import annotations

import pytest
from tests.products.results import parsed

from vectord.errors import WrongType
from vectord.products.infinity import DIALECT, MAX_TEXT_CHARS


def test_a_text_may_be_as_long_as_infinity_takes() -> None:
    """The limit itself is accepted."""
    assert parsed(DIALECT, "/embeddings", {"input": "b" * MAX_TEXT_CHARS}).request.inputs == ["b" * MAX_TEXT_CHARS]
    with pytest.raises(WrongType) as refused:
        parsed(DIALECT, "/embeddings", {"input": ["a", "b" * (MAX_TEXT_CHARS + 1)]})
    assert (refused.value.field_name, refused.value.index) == ("input", 1)
