"""Sparse vectors against the plainest way to make them."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from vectord.engine.operations import sparse

weighted_tokens = st.lists(st.tuples(st.integers(0, 9), st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.5])), max_size=20)


@given(weighted_tokens, st.sets(st.integers(0, 9), max_size=3))
@settings(deadline=None, max_examples=150)
def test_a_word_weighs_as_much_as_its_heaviest_token(tokens, unused):
    """Against a dict filled token by token: specials and weights of 0 are no words, order is that of appearance."""
    expected: dict[int, float] = {}
    for word, weight in tokens:
        if word not in unused and weight > 0:
            expected[word] = max(weight, expected.get(word, 0.0))
    ids = np.array([word for word, _ in tokens], np.int32)
    weights = np.array([weight for _, weight in tokens], np.float32)
    made = sparse.from_tokens(ids, weights, np.array(sorted(unused), np.int32))
    assert list(zip(made.indices.tolist(), made.values.tolist(), strict=True)) == list(expected.items())
    assert (made.indices.dtype, made.values.dtype) == (np.int32, np.float32)


@given(st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=30))
@settings(deadline=None, max_examples=100)
def test_logits_become_logarithms_of_those_above_zero(logits):
    """log(1 + relu(x)), each word once, ascending."""
    made = sparse.from_logits(np.array(logits, np.float32))
    expected = {word: math.log1p(x) for word, x in enumerate(logits) if x > 0}
    assert made.indices.tolist() == list(expected)
    np.testing.assert_allclose(made.values, list(expected.values()), rtol=1e-6)
    assert (made.indices.dtype, made.values.dtype) == (np.int32, np.float32)
