"""The tolerances of `vectord verify`, and its stored vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from vectord.checkpoints import catalogue
from vectord.tools.probe import FloatArray, ProbedRoute, ProbeReply
from vectord.tools.verify import FIRST_NUMBERS, GOLDEN, GOLDEN_TEXTS, TASK_SCORES, VerifiedModel, verify

MINILM = "sentence-transformers/all-MiniLM-L6-v2"


def golden() -> dict[str, FloatArray]:
    with np.load(GOLDEN, allow_pickle=False) as stored:
        return dict(stored)


class Turned:
    """A route whose vectors have the given cosine with the stored ones of MiniLM."""

    def __init__(self, cosine: float) -> None:
        self._cosine = cosine

    def embed(self, texts: Sequence[str]) -> tuple[ProbeReply, FloatArray]:
        stored = golden()[MINILM]
        noise = np.random.default_rng(0).standard_normal(stored.shape)
        noise -= stored * np.sum(noise * stored, axis=1, keepdims=True)
        noise /= np.linalg.norm(noise, axis=1, keepdims=True)
        return ProbeReply(200), self._cosine * stored + np.sqrt(1 - self._cosine**2) * noise


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
    route: Any = Turned(cosine)
    stored, *_ = verify(VerifiedModel(cast(ProbedRoute, route), MINILM, dtype), None, [])
    assert stored.verdict == verdict


def test_stored_vectors_are_of_known_models_and_all_texts() -> None:
    """Each is a vector of length 1 with the model's width. Published numbers and scores are of known models too."""
    for hub_id, vectors in golden().items():
        entry = catalogue.find(hub_id)
        assert entry is not None
        assert vectors.shape == (len(GOLDEN_TEXTS), entry.dimensions)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert all(catalogue.find(name) for name in (*FIRST_NUMBERS, *(hub_id for hub_id, _ in TASK_SCORES)))


def test_the_stored_vectors_have_the_published_numbers() -> None:
    """Two independent references agree."""
    published = FIRST_NUMBERS[MINILM]
    np.testing.assert_allclose(golden()[MINILM][0, : len(published)], published, atol=1e-5)
