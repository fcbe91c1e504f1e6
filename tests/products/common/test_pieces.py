"""Pieces of a document lie in it where their spans say."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vectord.products.common.inputs import join_chunks
from vectord.schema import Span


@given(st.lists(st.text(min_size=1), max_size=20))
def test_every_piece_is_its_span_of_the_text(pieces):
    """In order and apart, with at most one blank between two."""
    text, spans = join_chunks(pieces)
    assert [text[span.start : span.stop] for span in spans] == pieces
    gaps = [text[before.stop : after.start] for before, after in pairwise(spans)]
    assert set(gaps) <= {"", " "}


@pytest.mark.parametrize(
    ("pieces", "text"), [(["a", "b"], "a b"), (["a ", "b"], "a b"), (["a", "\nb"], "a\nb"), ([], "")], ids=str
)
def test_a_blank_stands_where_none_was(pieces, text):
    """And nowhere else."""
    assert join_chunks(pieces)[0] == text


def test_the_blank_belongs_to_nobody():
    """Neither piece's vector sees it."""
    assert join_chunks(["ab", "c"])[1] == [Span(0, 2), Span(3, 4)]
