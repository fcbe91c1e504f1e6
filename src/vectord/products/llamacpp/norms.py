"""llama.cpp's `embd_normalize`: the norm of a vector that becomes 1. Pure numpy; routes.py calls it on raw vectors."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vectord.schema import Float32

RAW = -1
MAX_ABSOLUTE = 0
EUCLIDEAN = 2  # the default, which the engine computes
INT16_SCALE = 32760.0  # the largest number of a vector under MAX_ABSOLUTE


def scaled(vectors: Float32, norm: int) -> Float32:
    """vectors (N, D), raw, each divided by its norm; a vector of zeros stays.

    norm: RAW, MAX_ABSOLUTE, or p for the p-norm, 1 and more. Source: common_embd_normalize in llama.cpp.
    """
    if norm == RAW:
        return vectors
    largest = np.abs(vectors).max(axis=1, keepdims=True).astype(np.float64)  # (N, 1)
    # Divide by the largest number first: the p-th powers of small numbers would underflow.
    unit: npt.NDArray[np.float64] = np.zeros(vectors.shape)  # (N, D)
    np.divide(vectors, largest, out=unit, where=largest > 0)
    if norm == MAX_ABSOLUTE:
        unit *= INT16_SCALE
    else:
        sums = (np.abs(unit) ** norm).sum(axis=1, keepdims=True)  # (N, 1), from 1 to D; 0 for zeros
        unit /= np.maximum(sums, 1.0) ** (1 / norm)
    return unit.astype(np.float32)
