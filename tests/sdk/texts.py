"""The texts every client sends here, and how answers are compared."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

API_KEY = "sdk-test-key"
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


def cosines(a: object, b: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Row by row, (N,)."""
    left, right = np.asarray(a, dtype=np.float64), b.astype(np.float64)
    assert left.shape == right.shape
    return (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
