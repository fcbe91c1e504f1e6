"""Queries and documents, in everybody's words."""

from __future__ import annotations

import pytest

from vectord.products.common.inputs import read_kind

WORDS = {
    "query": ["query", "retrieval.query", "search_query", "code.query"],
    "document": ["document", "passage", "retrieval.passage", "search_document", "code.passage"],
}


@pytest.mark.parametrize(("word", "kind"), [(word, kind) for kind, words in WORDS.items() for word in words])
def test_a_word_of_some_product_says_which_side(word, kind):
    """Jina's, Cohere's, Voyage's and Weaviate's."""
    assert read_kind(word) == kind


@pytest.mark.parametrize("word", [None, "", "classification", "clustering", "text-matching", "Query", "query "])
def test_any_other_task_says_nothing(word):
    """It is no error: those tasks are theirs, and no prompt of a model here is for them."""
    assert read_kind(word) is None


def test_the_first_word_that_means_anything_counts():
    """A body may have two: the one asked first outranks the other, unless it says nothing."""
    assert read_kind("document", "query") == "document"
    assert read_kind(None, "clustering", "search_query", "passage") == "query"
    assert read_kind() is None
