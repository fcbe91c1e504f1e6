"""The fake backend: vectors that tests can count on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes import ScriptedBackend
from tests.models import batch_of, random_texts

from vectord.backends.base import TokenBatch
from vectord.backends.fake import FakeBackend

GOLDEN_DENSE = np.array([[-0.2906186282634735, 0.7794753313064575, -0.005951517727226019]], np.float32)
GOLDEN_TOKENS = np.array(
    [[0.493924081325531, 0.9712284803390503], [0.6776674389839172, 0.3950173556804657]], np.float32
)
TEXTS = st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=20), min_size=1, max_size=8)


@settings(deadline=None, max_examples=60)
@given(texts=TEXTS, output=st.sampled_from(["dense", "tokens"]))
def test_a_text_has_one_answer(texts: list[list[int]], output: str) -> None:
    """Alone and in any batch, to the last bit."""
    backend = FakeBackend(12, 7)
    together = backend.forward(batch_of(*texts, output=output), 0)
    alone = [backend.forward(batch_of(text, output=output), 0) for text in texts]
    np.testing.assert_array_equal(together, np.concatenate(alone))


def test_answers_are_the_same_on_every_machine() -> None:
    """Other tests, and people trying clients, may write these numbers down."""
    backend = FakeBackend(3, 2)
    np.testing.assert_array_equal(backend.forward(batch_of([101, 7, 102]), 0), GOLDEN_DENSE)
    np.testing.assert_array_equal(backend.forward(batch_of([101, 7], output="tokens"), 0), GOLDEN_TOKENS)


@pytest.mark.parametrize(
    "other", [[1, 2, 4], [1, 3, 2], [1, 2], [1, 2, 3, 3]], ids=["another token", "another order", "shorter", "longer"]
)
def test_other_texts_have_other_vectors(other: Sequence[int]) -> None:
    """No two texts can be taken for each other."""
    a, b = FakeBackend(384, 8).forward(batch_of([1, 2, 3], other), 0)
    assert abs(a @ b) / np.linalg.norm(a) / np.linalg.norm(b) < 0.3


def test_dense_vectors_are_about_one_long_but_not_normalised() -> None:
    """So that a test can see whether somebody normalised."""
    lengths = np.linalg.norm(FakeBackend(384, 8).forward(batch_of(*random_texts(range(1, 40))), 0), axis=1)
    assert np.abs(lengths - 1).max() < 0.2
    assert np.abs(lengths - 1).min() > 1e-6


def test_only_a_texts_own_ids_count() -> None:
    """Type ids, and how the array lies in memory, change nothing."""
    ids = np.arange(20, dtype=np.int32)
    cu_seqlens = np.array([0, 4, 10], np.int32)
    backend = FakeBackend(5, 5)
    strided = TokenBatch(ids=ids[::2], type_ids=np.ones(10, np.int32), cu_seqlens=cu_seqlens)
    plain = TokenBatch(ids=ids[::2].copy(), type_ids=np.zeros(10, np.int32), cu_seqlens=cu_seqlens)
    np.testing.assert_array_equal(backend.forward(strided, 0), backend.forward(plain, 0))


# The scripted backend, on which the engine's tests stand, does what it is told.


def test_scripted_failures_hit_the_batch_they_name() -> None:
    """A batch with the token fails in its way; others are answered like the plain fake's."""
    scripted = ScriptedBackend(raise_on=13, nan_on=14, kill_on=15, memory_tokens=4)
    good = batch_of([1, 2], [3])
    np.testing.assert_array_equal(scripted.forward(good, 0), FakeBackend(8, 8).forward(good, 0))
    with pytest.raises(RuntimeError):
        scripted.forward(batch_of([13]), 0)
    with pytest.raises(SystemExit):
        scripted.forward(batch_of([1], [15]), 0)
    with pytest.raises(MemoryError):
        scripted.forward(batch_of([1, 2, 3], [4, 5]), 0)
    assert np.isnan(scripted.forward(batch_of([1], [2, 14], [3]), 0)).all(axis=1).tolist() == [False, True, False]
    tokens = scripted.forward(batch_of([1], [2, 14], [3], output="tokens"), 0)
    assert np.isnan(tokens).all(axis=1).tolist() == [False, True, True, False]
    assert len(scripted.batches) == 6
