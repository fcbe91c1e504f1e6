"""The fake backend: deterministic vectors for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.compute.backends.models import LABELS, write_classifier, write_splade
from tests.fakes import ScriptedBackend
from tests.models import batch_of, pack_texts, random_texts

from vectord.checkpoints.spec import Output
from vectord.compute.backends.base import BackendOptions, PackedTexts, TokenBatch
from vectord.compute.backends.fake import FakeBackend, load

GOLDEN_DENSE = np.array([[-0.2906186282634735, 0.7794753313064575, -0.005951517727226019]], np.float32)
GOLDEN_TOKENS = np.array(
    [[0.493924081325531, 0.9712284803390503], [0.6776674389839172, 0.3950173556804657]], np.float32
)
WIDTHS: dict[Output, int] = {"dense": 12, "tokens": 7, "colbert": 5, "lexical": 1, "splade": 30, "scores": 3}
TEXTS = st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=20), min_size=1, max_size=8)


def answer(texts: PackedTexts, output: Output = "dense", width: int = 384) -> np.ndarray:
    backend = FakeBackend({output: width})
    return backend.forward(TokenBatch(texts=texts, outputs=frozenset({output})), 0)[output]


@settings(deadline=None, max_examples=60)
@given(texts=TEXTS)
def test_a_text_has_one_result(texts: list[list[int]]) -> None:
    """Alone and in any batch, to the last bit."""
    backend = FakeBackend(WIDTHS)
    together = backend.forward(batch_of(*texts, outputs=WIDTHS), 0)
    alone = [backend.forward(batch_of(text, outputs=WIDTHS), 0) for text in texts]
    for output, rows in together.items():
        np.testing.assert_array_equal(rows, np.concatenate([one[output] for one in alone]))


def test_results_are_the_same_on_every_machine() -> None:
    """Other tests and users may write these numbers down."""
    np.testing.assert_array_equal(answer(pack_texts([101, 7, 102]), width=3), GOLDEN_DENSE)
    np.testing.assert_array_equal(answer(pack_texts([101, 7]), "tokens", width=2), GOLDEN_TOKENS)


@pytest.mark.parametrize(
    "other", [[1, 2, 4], [1, 3, 2], [1, 2], [1, 2, 3, 3]], ids=["another token", "another order", "shorter", "longer"]
)
def test_different_texts_have_different_vectors(other: Sequence[int]) -> None:
    """No two texts are confused."""
    a, b = answer(pack_texts([1, 2, 3], other))
    assert abs(a @ b) / np.linalg.norm(a) / np.linalg.norm(b) < 0.3


def test_dense_vectors_have_a_norm_near_one_without_normalization() -> None:
    """So that a test can detect normalization."""
    lengths = np.linalg.norm(answer(pack_texts(*random_texts(range(1, 40)))), axis=1)
    assert np.abs(lengths - 1).max() < 0.2
    assert np.abs(lengths - 1).min() > 1e-6


def test_lexical_weights_are_plausible() -> None:
    """One number a token, none below 0."""
    weights = answer(pack_texts(*random_texts((9, 1, 30))), "lexical", width=1)
    assert weights.shape == (40, 1)
    assert weights.min() >= 0
    assert weights.max() <= 2
    assert len(np.unique(weights)) == 40


def test_only_a_texts_own_ids_count() -> None:
    """Type ids and the array's memory layout change nothing."""
    ids = np.arange(20, dtype=np.int32)
    cu_seqlens = np.array([0, 4, 10], np.int32)
    strided = PackedTexts(ids=ids[::2], type_ids=np.ones(10, np.int32), cu_seqlens=cu_seqlens)
    plain = PackedTexts(ids=ids[::2].copy(), type_ids=np.zeros(10, np.int32), cu_seqlens=cu_seqlens)
    np.testing.assert_array_equal(answer(strided), answer(plain))


@pytest.mark.parametrize("output", WIDTHS)
def test_a_text_after_its_parent_equals_the_whole_text(output: Output) -> None:
    """A shared beginning changes no result, and neither does the order of rows."""
    shared = pack_texts([1, 2], [3], [4, 5], [6], parents=np.array([-1, 0, 0, -1], np.int32))
    got = answer(shared, output, WIDTHS[output])
    want = answer(pack_texts([1, 2], [1, 2, 3], [1, 2, 4, 5], [6]), output, WIDTHS[output])
    per_token = [0, 1, 4, 7, 8, 9]  # the rows of [1, 2] [3] [4, 5] [6] among those of the whole texts
    np.testing.assert_array_equal(got, want[per_token] if len(want) > 4 else want)


def test_spans_have_their_own_results() -> None:
    """A part differs from its text, other parts, and a text of the same ids; the whole span equals the text."""
    spans = np.array([[0, 2], [2, 4], [0, 4], [4, 6]], np.int32)
    rows = answer(pack_texts([1, 2, 3, 4], [3, 4], spans=spans))
    assert len(np.unique(rows, axis=0)) == 4
    np.testing.assert_array_equal(rows[2:], answer(pack_texts([1, 2, 3, 4], [3, 4])))


def test_widths_are_the_models(tmp_path: Path) -> None:
    """Dimensions, words and labels have the real model's numbers."""
    texts = pack_texts([1, 2, 3], [4])
    for spec, widths in (
        (write_classifier(tmp_path / "classifier"), {"scores": (2, len(LABELS))}),
        (write_splade(tmp_path / "splade"), {"splade": (2, 60), "tokens": (4, 32)}),
    ):
        answers = load(spec, BackendOptions()).forward(TokenBatch(texts=texts, outputs=spec.outputs), 0)
        assert {output: rows.shape for output, rows in answers.items()} == widths


# The scripted backend, which the engine's tests use.


def test_scripted_failures_hit_the_batch_they_name() -> None:
    """A batch with the token fails as scripted; others have the plain fake's results."""
    scripted = ScriptedBackend(raise_on=13, nan_on=14, kill_on=15, memory_tokens=4)
    good = batch_of([1, 2], [3])
    plain = FakeBackend({"dense": 8}).forward(good, 0)
    np.testing.assert_array_equal(scripted.forward(good, 0)["dense"], plain["dense"])
    with pytest.raises(RuntimeError):
        scripted.forward(batch_of([13]), 0)
    with pytest.raises(SystemExit):
        scripted.forward(batch_of([1], [15]), 0)
    with pytest.raises(MemoryError):
        scripted.forward(batch_of([1, 2, 3], [4, 5]), 0)
    answers = scripted.forward(batch_of([1], [2, 14], [3], outputs=("dense", "tokens")), 0)
    assert np.isnan(answers["dense"]).all(axis=1).tolist() == [False, True, False]
    assert np.isnan(answers["tokens"]).all(axis=1).tolist() == [False, True, True, False]
    assert len(scripted.batches) == 5
