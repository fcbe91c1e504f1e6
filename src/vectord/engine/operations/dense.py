"""From a model's raw dense rows to the vectors a request asked for. Pure numpy; called by the operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from vectord.schema import Float32, Precision

# int8 reaches so many times the spread of a unit vector's numbers, 1 / sqrt(D).
INT8_RANGE = 6.0


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


def in_precision(vectors: Float32, precision: Precision) -> npt.NDArray[np.generic]:
    """vectors (N, D) as `precision` says; bits are packed eight to a byte, the first one highest, as (N, D / 8).

    int8: each number times 127 * sqrt(D) / 6, rounded and cut at +-127. A unit vector's numbers spread around
    1 / sqrt(D), so this reaches six times their spread: cosine 0.9999 with the vector itself, and the cosine of two
    texts moves by some 0.02 / sqrt(D), a thousandth at 384. It is the same for every text, model and machine: vectors
    of different days can be compared. uint8: that plus 128. ubinary: a bit for each number above 0; binary: those
    bytes less 128 (both as sentence-transformers' quantize_embeddings).
    """
    return _CONVERSIONS[precision](vectors)


def _to_int8(vectors: Float32) -> npt.NDArray[np.int8]:
    scaled = np.rint(vectors * (127 * np.sqrt(vectors.shape[1]) / INT8_RANGE))
    whole: npt.NDArray[np.int8] = np.clip(scaled, -127, 127).astype(np.int8)
    return whole


def _to_uint8(vectors: Float32) -> npt.NDArray[np.uint8]:
    return (_to_int8(vectors).astype(np.int16) + 128).astype(np.uint8)


def _to_bits(vectors: Float32) -> npt.NDArray[np.uint8]:
    return np.packbits(vectors > 0, axis=1)


def _to_signed_bits(vectors: Float32) -> npt.NDArray[np.int8]:
    return (_to_bits(vectors).astype(np.int16) - 128).astype(np.int8)


_CONVERSIONS: Mapping[Precision, Callable[[Float32], npt.NDArray[np.generic]]] = {
    "float": lambda vectors: vectors,
    "int8": _to_int8,
    "uint8": _to_uint8,
    "binary": _to_signed_bits,
    "ubinary": _to_bits,
}


def cosines(rows: Float32) -> Float32:
    """Cosine of the first row with each other one. rows (N + 1, D), each of length 1 or 0. Returns (N,), in -1 .. 1."""
    scores: Float32 = np.clip(rows[1:] @ rows[0], -1.0, 1.0)
    return scores
