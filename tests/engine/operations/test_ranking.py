"""Scores against the plainest way to compute them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from vectord.engine.operations import ranking
from vectord.schema import Sparse

numbers = st.floats(-4, 4, width=32)
token_rows = st.integers(0, 5).flatmap(lambda n: arrays(np.float32, (n, 3), elements=numbers))
some_rows = st.integers(1, 5).flatmap(lambda n: arrays(np.float32, (n, 3), elements=numbers))
words = st.dictionaries(st.integers(0, 30), st.floats(0.125, 4, width=32), max_size=8)


@given(some_rows, st.lists(token_rows, min_size=1, max_size=5))
@settings(deadline=None, max_examples=100)
def test_the_best_match_of_each_query_token_is_summed(query, passages):
    """Token by token; a passage without tokens matches nothing."""
    expected = [sum(max((float(q @ p) for p in passage), default=0.0) for q in query) for passage in passages]
    scores = ranking.sums_of_best(query, passages)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)


@given(words, st.lists(words, min_size=1, max_size=6))
@settings(deadline=None, max_examples=150)
def test_products_are_over_shared_words(query, passages):
    """Against dicts; words in any order, and texts without any."""
    expected = [sum(weight * passage.get(word, 0.0) for word, weight in query.items()) for passage in passages]
    scores = ranking.dots(sparse(query), [sparse(passage) for passage in passages])
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, expected, rtol=1e-6)


def sparse(weights: dict[int, float]) -> Sparse:
    return Sparse(np.array(list(weights), np.int32), np.array(list(weights.values()), np.float32))


def test_a_probability_of_any_logit_is_one():
    """Far out neither overflow nor NaN, and in between 1 / (1 + exp(-x))."""
    logits = np.array([-1e30, -1000, -2, 0, 3, 1000, 1e30], np.float32)
    expected = [0, 0, 1 / (1 + math.exp(2)), 0.5, 1 / (1 + math.exp(-3)), 1, 1]
    np.testing.assert_allclose(ranking.sigmoid(logits), expected, atol=1e-7)


@pytest.mark.parametrize("far", [0.0, 1e4, 1e38, -1e38])
def test_shares_sum_to_one(far):
    """Wherever the logits lie."""
    shares = ranking.softmax(np.array([[1, 2, 3], [far, 0, 1]], np.float32))
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(shares[0], np.exp([1, 2, 3]) / np.exp([1, 2, 3]).sum(), rtol=1e-6)
