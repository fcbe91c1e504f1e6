"""From a model's raw dense rows to the vectors a request asked for. Pure numpy; called by engine.py."""

from __future__ import annotations

import numpy as np

from vectord.schema import Float32


def finish(rows: Float32, dimensions: int | None, normalize: bool) -> Float32:
    """Keep the first `dimensions` numbers of each row, then scale it to length 1.

    rows (N, D) float32, finite. Returns (N, dimensions or D) float32. The norm is taken in float64, where no square of
    a float32 overflows or vanishes; a row of zeros stays zeros. Source: sentence-transformers `truncate_dim` followed
    by `normalize_embeddings`.
    """
    kept = rows if dimensions is None else rows[:, :dimensions]
    if not normalize:
        return np.ascontiguousarray(kept)
    norms = np.sqrt(np.einsum("nd,nd->n", kept, kept, dtype=np.float64))  # (N,)
    norms[norms == 0] = 1.0
    unit: Float32 = np.divide(kept, norms[:, None], dtype=np.float64).astype(np.float32)
    return unit


def cosines(rows: Float32) -> Float32:
    """Cosine of the first row with each other one. rows (N + 1, D), each of length 1 or 0. Returns (N,), in -1 .. 1."""
    scores: Float32 = np.clip(rows[1:] @ rows[0], -1.0, 1.0)
    return scores
