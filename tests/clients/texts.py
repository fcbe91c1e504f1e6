"""The texts that all clients send, and the comparison of their vectors with the reference."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
MAX_TOKENS = 256  # the limit of this model
TEXTS = [
    "That is a happy person",
    "That is a happy dog",
    "Today is a sunny day",
    "a",
    "Ünïcödé, 漢字, emoji 🎉 and a\ttab",
    "SELECT name FROM users WHERE id = 42; -- not a comment",
    "The quick brown fox jumps over the lazy dog. " * 8,
    "def mean(xs):\n    return sum(xs) / len(xs)\n",
]
TOO_LONG = "word " * 400
QUERY = "Which animal is happy?"
PICTURED = "a lazy dog"  # a text for the model of pictures
PASSAGES = TEXTS[:3]


def assert_same_vectors(given: object, expected: npt.NDArray[np.float32]) -> None:
    """Same shape, and every row with a cosine above 0.9999."""
    left, right = np.asarray(given, dtype=np.float64), expected.astype(np.float64)
    assert left.shape == right.shape
    cosines = (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
    assert cosines.min() > 0.9999
