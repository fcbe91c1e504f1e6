"""Readers of shared inputs and options accept the products' forms, and name the field of any other."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vectord.errors import InvalidField
from vectord.products.common.inputs import (
    join_chunks,
    read_fingerprint,
    read_kind,
    read_switch,
)
from vectord.schema import Span

# --- inputs ---------------------------------------------------------------------------------------------------


@given(st.lists(st.text(min_size=1), max_size=20))
def test_a_chunk_is_its_span_of_the_document(chunks):
    """Chunks are in order, with at most one space between two."""
    text, spans = join_chunks(chunks)
    assert [text[span.start : span.stop] for span in spans] == chunks
    assert {text[left.stop : right.start] for left, right in pairwise(spans)} <= {"", " "}


@pytest.mark.parametrize(
    ("chunks", "text"), [(["a", "b"], "a b"), (["a ", "b"], "a b"), (["a", "\nb"], "a\nb"), ([], "")], ids=str
)
def test_a_space_is_inserted_between_words(chunks, text):
    """It belongs to neither chunk."""
    assert join_chunks(chunks)[0] == text
    assert join_chunks(["ab", "c"])[1] == [Span(0, 2), Span(3, 4)]


# --- options --------------------------------------------------------------------------------------------------

KINDS = {
    "query": ["query", "retrieval.query", "search_query", "nl2code.query"],
    "document": ["document", "passage", "retrieval.passage", "search_document", "code2code.passage"],
    "classification": ["classification"],
    "clustering": ["clustering", "separation"],
    None: [None, ""],
}


@pytest.mark.parametrize(("kind", "words"), KINDS.items(), ids=str)
def test_a_task_selects_the_use_of_the_texts(kind, words):
    """Words of Jina, Cohere, Voyage and Weaviate."""
    assert {read_kind(word) for word in words} == {kind}


@pytest.mark.parametrize("value", [None, "0", "0123456789abcdef:256", "0123456789abcdef:256:raw", "f:raw"])
def test_a_fingerprint_is_returned_unchanged(value):
    """With or without a width, of normalized or raw vectors."""
    assert read_fingerprint(value) == value


INVALID: dict[str, tuple[Callable[..., object], list[Any], str]] = {
    "switch": (read_switch, ["", "yes", "1", " true", "none"], "`flag` must be true or false."),
    "kind": (read_kind, ["text-matching", "Query", "query ", "qeury"], "`flag` must be one of query, "),
    "fingerprint": (read_fingerprint, ["", "f" * 33, "f:12345678", "f:raw:8", "F", "a b", "a\n", "\u0660"], "`flag` "),
}


@pytest.mark.parametrize(("read", "values", "message"), INVALID.values(), ids=INVALID)
def test_other_values_are_rejected(read, values, message):
    """The error has the field, and not the value."""
    for value in values:
        with pytest.raises(InvalidField) as caught:
            read(value, "flag")
        assert caught.value.field == "flag"
        assert caught.value.message.startswith(message)
