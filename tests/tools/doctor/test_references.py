"""The tolerances of references, and the stored vectors."""

from __future__ import annotations

import numpy as np
import pytest

from vectord.checkpoints import catalogue
from vectord.tools.doctor.references import GOLDEN, GOLDEN_TEXTS, compare_with_stored
from vectord.tools.probe import FloatArray

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
# The first numbers of "hello world" that FastEmbed's tests expect (tests/test_text_onnx_embeddings.py, commit 00e932f).
PUBLISHED = (-0.034478, 0.03102, 0.00673, 0.02611, -0.039362)


def golden() -> dict[str, FloatArray]:
    with np.load(GOLDEN, allow_pickle=False) as stored:
        return dict(stored)


def turned(cosine: float) -> FloatArray:
    """Vectors with this cosine to the stored ones of MiniLM."""
    stored = golden()[MINILM]
    noise = np.random.default_rng(0).standard_normal(stored.shape)
    noise -= stored * np.sum(noise * stored, axis=1, keepdims=True)
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    return cosine * stored + np.sqrt(1 - cosine**2) * noise


@pytest.mark.parametrize(
    ("cosine", "dtype", "verdict"),
    [
        (0.999995, "float32", "passed"),
        (0.9999, "float32", "failed"),
        (0.9995, "bfloat16", "passed"),
        (0.998, "bfloat16", "failed"),
        (0.98, "int8", "passed"),
        (0.95, "int8", "failed"),
        (0.998, "unknown", "failed"),
    ],
)
def test_the_tolerance_depends_on_the_dtype(cosine: float, dtype: str, verdict: str) -> None:
    assert compare_with_stored(MINILM, dtype, turned(cosine)).verdict == verdict


def test_a_folder_is_known_by_its_name() -> None:
    """Other names have no stored vectors; another width is no match."""
    assert compare_with_stored("all-MiniLM-L6-v2", "float32", golden()[MINILM]).verdict == "passed"
    assert compare_with_stored("my-model", "float32", golden()[MINILM]).verdict == "not offered"
    narrow = compare_with_stored(MINILM, "float32", golden()[MINILM][:, :256])
    assert (narrow.verdict, narrow.why) == ("failed", "256 instead of 384 numbers")


def test_stored_vectors_are_of_known_models_and_all_texts() -> None:
    """Each is a vector of length 1 with the model's width."""
    for hub_id, vectors in golden().items():
        entry = catalogue.find(hub_id)
        assert entry is not None
        assert vectors.shape == (len(GOLDEN_TEXTS), entry.dimensions)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_the_stored_vectors_have_the_published_numbers() -> None:
    """Two independent references agree."""
    np.testing.assert_allclose(golden()[MINILM][0, : len(PUBLISHED)], PUBLISHED, atol=1e-5)
