"""llama.cpp: the norms of vectors. cases/llamacpp.json has the rest."""

from __future__ import annotations

import numpy as np
import pytest

from vectord.products.llamacpp import EUCLIDEAN, INT16_SCALE, scaled

ROWS = np.array([[3.0, -4.0], [0.0, 0.0]], np.float32)


@pytest.mark.parametrize(
    ("norm", "vectors"),
    [
        pytest.param(0, [[24570.0, -32760.0], [0.0, 0.0]], id="largest"),
        pytest.param(EUCLIDEAN, [[0.6, -0.8], [0.0, 0.0]], id="as the engine's"),
        pytest.param(1, [[3 / 7, -4 / 7], [0.0, 0.0]], id="taxicab"),
        pytest.param(3, [[3 / 91 ** (1 / 3), -4 / 91 ** (1 / 3)], [0.0, 0.0]], id="p"),
        pytest.param(2**31 - 1, [[0.75, -1.0], [0.0, 0.0]], id="p without end"),
    ],
)
def test_each_norm_has_its_formula(norm, vectors):
    """A zero vector stays zero."""
    assert np.allclose(scaled(ROWS, norm), vectors, rtol=1e-6)


@pytest.mark.parametrize("norm", [0, 1, 2, 3, 100])
@pytest.mark.parametrize("size", [1e-45, 1e-30, 1.0, 1e38], ids=str)
def test_norms_of_tiny_and_huge_vectors(norm, size):
    """No overflow and no underflow: two equal numbers share the norm."""
    expected = INT16_SCALE if norm == 0 else 0.5 ** (1 / norm)
    vectors = scaled(np.full((1, 2), size, np.float32), norm)
    assert vectors.dtype == np.float32
    assert np.allclose(vectors, expected, rtol=1e-6)
