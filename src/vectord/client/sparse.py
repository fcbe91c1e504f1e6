"""Sparse vectors -> one matrix of scipy's. Imported where they are asked for: scipy is an extra, and takes 0.3 s."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_array  # type: ignore[import-untyped]

from vectord.client.vectors import SparsePiece

# No answer says how large a vocabulary is, and matrices of two calls can only be multiplied if they are equally wide.
# So all are as wide as Gemma's vocabulary, the largest of those in docs/models.md, or a power of two beyond that.
LEAST_WIDTH = 2**18


def csr_of(pieces: Sequence[SparsePiece]) -> csr_array:
    """(N, LEAST_WIDTH or more) float32; the token ids of a row ascend."""
    lengths = np.concatenate([np.zeros(1, np.int64), *(piece.lengths for piece in pieces)])  # (N + 1,)
    ids = np.concatenate([np.empty(0, np.int32), *(piece.ids for piece in pieces)])
    weights = np.concatenate([np.empty(0, np.float32), *(piece.weights for piece in pieces)])
    width = max(LEAST_WIDTH, 1 << int(ids.max(initial=0)).bit_length())
    matrix = csr_array((weights, ids, np.cumsum(lengths)), shape=(len(lengths) - 1, width))
    matrix.sort_indices()
    return matrix
