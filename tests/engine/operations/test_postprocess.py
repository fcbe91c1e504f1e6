"""Dimensions, normalization, precisions and scores, compared with the simplest way to compute them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from vectord.engine.operations import postprocess
from vectord.schema import Sparse

finite_rows = arrays(
    np.float32, st.tuples(st.integers(1, 4), st.integers(1, 6)), elements=st.floats(-(2.0**120), 2.0**120, width=32)
)


@given(finite_rows, st.data())
def test_every_finite_row_becomes_length_one_or_stays_zero(rows, data):
    """No overflow, underflow or division by zero; the direction is that of the kept numbers."""
    dimensions = data.draw(st.integers(1, rows.shape[1]))
    finished = postprocess.finish(rows, dimensions, normalize=True)
    assert finished.shape == (len(rows), dimensions)
    assert finished.dtype == np.float32
    assert np.isfinite(finished).all()
    kept = rows[:, :dimensions].astype(np.float64)
    norms = np.linalg.norm(kept, axis=1)
    lengths = np.linalg.norm(finished.astype(np.float64), axis=1)
    np.testing.assert_allclose(lengths, norms > 0, atol=1e-6)
    np.testing.assert_allclose(finished * norms[:, None], kept, rtol=1e-6, atol=1e-6 * norms.max())


def test_without_normalization_the_numbers_are_unchanged():
    """The raw row, cut. The given rows are never changed: one may be in the cache."""
    rows = np.array([[3, 4, 12]], np.float32)
    np.testing.assert_array_equal(postprocess.finish(rows, 2, normalize=False), [[3, 4]])
    postprocess.finish(rows, None, normalize=True)
    np.testing.assert_array_equal(rows, [[3, 4, 12]])
    np.testing.assert_array_equal(postprocess.finish(rows, None, normalize=False), rows)


def test_cosines_are_of_the_first_row_with_each_other():
    """In order; a row of zeros has cosine 0."""
    rows = postprocess.finish(
        np.array([[0.1, 0.7, 0.3], [0.1, 0.7, 0.3], [-0.1, -0.7, -0.3], [0, 0, 0]], np.float32), None, True
    )
    scores = postprocess.cosines(rows)
    assert scores == pytest.approx([1, -1, 0], abs=1e-6)


@pytest.mark.parametrize("width", [3, 100, 384, 1024])
def test_equal_rows_have_equal_cosines(width):
    """Whatever their place, and however many others there are: equal passages stay in their order."""
    query, passage = unit_rows(2, width)
    scores = {
        score
        for count in (1, 2, 3, 4, 7, 16, 33, 200)
        for score in postprocess.cosines(np.stack([query, *[passage] * count])).tolist()
    }
    assert len(scores) == 1


def test_a_cosine_is_never_above_one():
    """Rounding would exceed it for some texts, and clients compute the arc cosine."""
    rows = np.random.default_rng(0).normal(size=(500, 1, 384)).astype(np.float32)
    units = [postprocess.finish(row, None, normalize=True) for row in rows]
    assert max(float((unit @ unit.T).max()) for unit in units) > 1  # the case is there
    assert max(float(postprocess.cosines(np.concatenate([unit, unit])).max()) for unit in units) <= 1


def unit_rows(count: int, width: int, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)
    return postprocess.finish(rows, None, normalize=True)


@pytest.mark.parametrize("precision", ["binary", "ubinary"])
@pytest.mark.parametrize("width", [8, 100, 384])
def test_bits_are_those_of_sentence_transformers(precision, width):
    """The same bytes in the same type, so that both can fill one index."""
    from sentence_transformers.util.quantization import quantize_embeddings

    vectors = unit_rows(20, width)
    ours = postprocess.in_precision(vectors, precision)
    theirs = quantize_embeddings(vectors, precision)
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("width", [64, 384, 1024])
def test_eight_bits_lose_little_of_a_cosine(width):
    """A vector's cosine with itself stays above 0.9998; that of two texts changes by about 0.02 / sqrt(D)."""
    vectors = unit_rows(100, width).astype(np.float64)
    whole = postprocess.in_precision(unit_rows(100, width), "int8").astype(np.float64)
    whole /= np.linalg.norm(whole, axis=1, keepdims=True)
    assert np.einsum("nd,nd->n", whole, vectors).min() > 0.9998
    moved = whole @ whole.T - vectors @ vectors.T
    assert np.sqrt((moved**2).mean()) < 0.025 / np.sqrt(width)


def test_int8_does_not_depend_on_the_batch():
    """Without calibration, vectors of different days can be compared."""
    vectors = unit_rows(10, 64)
    together = postprocess.in_precision(vectors, "int8")
    alone = [postprocess.in_precision(row[None], "int8") for row in vectors]
    np.testing.assert_array_equal(together, np.concatenate(alone))
    assert together.dtype == np.int8


def test_uint8_is_int8_plus_128():
    """One rule for both."""
    vectors = unit_rows(10, 64)
    signed, unsigned = postprocess.in_precision(vectors, "int8"), postprocess.in_precision(vectors, "uint8")
    assert unsigned.dtype == np.uint8
    np.testing.assert_array_equal(unsigned.astype(int) - 128, signed)


def test_a_number_out_of_range_is_clipped():
    """A vector with one large number keeps its sign."""
    vectors = np.eye(2, 64, dtype=np.float32) * np.array([[1], [-1]], np.float32)
    whole = postprocess.in_precision(vectors, "int8")
    assert (whole.max(), whole.min()) == (127, -127)


# --- scores ---

numbers = st.floats(-4, 4, width=32)
token_rows = st.integers(0, 5).flatmap(lambda n: arrays(np.float32, (n, 3), elements=numbers))
some_rows = st.integers(1, 5).flatmap(lambda n: arrays(np.float32, (n, 3), elements=numbers))
words = st.dictionaries(st.integers(0, 30), st.floats(0.125, 4, width=32), max_size=8)


@given(some_rows, st.lists(token_rows, min_size=1, max_size=5))
def test_the_best_match_of_each_query_token_is_summed(query, passages):
    """Token by token; a passage without tokens scores 0."""
    expected = [sum(max((float(q @ p) for p in passage), default=0.0) for q in query) for passage in passages]
    scores = postprocess.max_sims(query, passages)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)


@given(words, st.lists(words, min_size=1, max_size=6))
def test_products_are_over_shared_words(query, passages):
    """Compared with dicts; words in any order, and texts without words."""
    expected = [sum(weight * passage.get(word, 0.0) for word, weight in query.items()) for passage in passages]
    scores = postprocess.sparse_dots(sparse(query), [sparse(passage) for passage in passages])
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, expected, rtol=1e-6)


def sparse(weights: dict[int, float]) -> Sparse:
    return Sparse(np.array(list(weights), np.int32), np.array(list(weights.values()), np.float32))


def test_sigmoid_is_a_probability_for_any_logit():
    """No overflow or NaN; otherwise 1 / (1 + exp(-x)), also where that is small."""
    logits = np.array([-1e30, -1000, -60, -25, -2, 0, 3, 1000, 1e30], np.float32)
    expected = [0, 0, math.exp(-60), math.exp(-25), 1 / (1 + math.exp(2)), 0.5, 1 / (1 + math.exp(-3)), 1, 1]
    np.testing.assert_allclose(postprocess.activate(logits, "sigmoid")[0], expected, rtol=1e-6)


@pytest.mark.parametrize("far", [0.0, 1e4, 1e38, -1e38])
def test_shares_sum_to_one(far):
    """For any logits."""
    shares = postprocess.activate(np.array([[1, 2, 3], [far, 0, 1]], np.float32), "softmax")[0]
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(shares[0], np.exp([1, 2, 3]) / np.exp([1, 2, 3]).sum(), rtol=1e-6)
