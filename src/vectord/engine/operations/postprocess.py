"""Raw outputs of a model to normalized vectors, precisions and scores. Pure numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from vectord.checkpoints.activations import FORMULAS
from vectord.checkpoints.spec import ScoreActivation
from vectord.schema import Float32, Precision, ScoreKind, Sparse

_PROBABILITIES = frozenset({"sigmoid", "softmax"})
SMALLEST = np.finfo(np.float64).tiny  # below the length of any row but zeros
INT8_RANGE = 6.0  # int8 covers 6 times the spread of a unit vector's numbers, 1 / sqrt(D)


def finish(rows: Float32, dimensions: int | None, normalize: bool) -> Float32:
    """The first `dimensions` numbers of each row, scaled to length 1.

    rows (N, D) float32, finite. Returns (N, dimensions or D) float32. The norm is computed in float64, where no square
    of a float32 overflows or vanishes; a row of zeros stays zeros. Source: sentence-transformers, `truncate_dim` and
    then `normalize_embeddings`.
    """
    kept = rows if dimensions is None else rows[:, :dimensions]
    if not normalize:
        return np.ascontiguousarray(kept)
    wide = kept.astype(np.float64)
    norms = np.sqrt(np.einsum("nd,nd->n", wide, wide))  # (N,)
    wide /= np.maximum(norms, SMALLEST)[:, None]
    unit: Float32 = wide.astype(np.float32)
    return unit


def in_precisions(
    rows: Float32, dimensions: int | None, normalize: bool, precisions: Sequence[Precision]
) -> Mapping[Precision, npt.NDArray[np.generic]]:
    """`finish`ed rows (N, D) in each of the precisions."""
    vectors = finish(rows, dimensions, normalize)
    return {precision: in_precision(vectors, precision) for precision in precisions}


def in_precision(vectors: Float32, precision: Precision) -> npt.NDArray[np.generic]:
    """vectors (N, D) in `precision`; bits are packed eight to a byte, the first one highest, as (N, D / 8).

    int8: each number times 127 * sqrt(D) / 6, rounded and clipped to +-127. A unit vector's numbers spread around
    1 / sqrt(D), so this covers six times their spread: cosine 0.9999 with the vector itself, and the cosine of two
    texts changes by about 0.02 / sqrt(D), a thousandth at 384. The scale is the same for every text, model and machine,
    so that vectors of different days can be compared. uint8: that plus 128. ubinary: a bit for each number above 0;
    binary: those bytes minus 128 (both as sentence-transformers' quantize_embeddings).
    """
    match precision:
        case "float":
            return vectors
        case "int8" | "uint8":
            scaled: Float32 = np.clip(np.rint(vectors * (127 * np.sqrt(vectors.shape[1]) / INT8_RANGE)), -127, 127)
            return scaled.astype(np.int8) if precision == "int8" else (scaled + 128).astype(np.uint8)
        case "binary" | "ubinary":
            bits: npt.NDArray[np.uint8] = np.packbits(vectors > 0, axis=1)
            return bits if precision == "ubinary" else (bits.astype(np.int16) - 128).astype(np.int8)


def cosines(rows: Float32) -> Float32:
    """Cosine of the first row with each other one. rows (N + 1, D), each of length 1 or 0. Returns (N,), in -1 .. 1.

    A matrix product would round equal rows differently by their place, so that equal passages had different scores.
    """
    products = np.einsum("nd,d->n", rows[1:], rows[0], dtype=np.float64)
    scores: Float32 = np.clip(products, -1.0, 1.0).astype(np.float32)
    return scores


def activate(logits: Float32, kind: ScoreActivation) -> tuple[Float32, ScoreKind]:
    """logits (N, L) after the activation function, with the kind of their scores. Softmax is over the labels."""
    scores = logits if kind == "identity" else FORMULAS[kind](logits.astype(np.float64)).astype(np.float32)
    return scores, "probability" if kind in _PROBABILITIES else "logit"


def max_sims(query: Float32, passages: Sequence[Float32]) -> Float32:
    """For each passage, the sum over the query's rows of the largest product with any of the passage's rows.

    query (q, C), passages (n_i, C) each, rows of length 1. Returns (N,); a passage without rows scores 0. Source:
    ColBERT's MaxSim, as pylate computes it.
    """
    scores = [
        float((query @ passage.T).max(axis=1).sum(dtype=np.float64)) if len(passage) else 0.0 for passage in passages
    ]
    return np.array(scores, np.float32)


def list_scores(parts: Sequence[Float32]) -> Float32:
    """The cosine of each passage's state with the query's: (N,).

    parts: the states of some passages and, last, of the query, (n + 1, D) each. The query of several parts is their
    mean, weighted by each part's best score as (1 + cosine) / 2. Source: `rerank` of jina-reranker-v3's own code.
    """
    best = [(1 + float(_cosines_with(part[-1], part[:-1]).max())) / 2 for part in parts]
    query = np.average([part[-1] for part in parts], axis=0, weights=best) if len(parts) > 1 else parts[0][-1]
    return np.concatenate([_cosines_with(query, part[:-1]) for part in parts]).astype(np.float32)


def _cosines_with(query: Float32, rows: Float32) -> Float32:
    lengths = np.linalg.norm(query) * np.linalg.norm(rows, axis=1)
    cosines: Float32 = (rows @ query) / np.maximum(lengths, np.finfo(np.float32).tiny)
    return cosines


def sparse_dots(query: Sparse, passages: Sequence[Sparse]) -> Float32:
    """The dot product of the query's sparse vector with each passage's. Returns (N,)."""
    if not len(query.indices):
        return np.zeros(len(passages), np.float32)
    order = np.argsort(query.indices)
    known, values = query.indices[order], query.values[order].astype(np.float64)
    indices = np.concatenate([passage.indices for passage in passages])  # (n,) of all passages, end to end
    weights = np.concatenate([passage.values for passage in passages])
    place = np.searchsorted(known, indices).clip(max=len(known) - 1)
    products = np.where(known[place] == indices, values[place] * weights, 0.0)
    owners = np.repeat(np.arange(len(passages)), [len(passage.indices) for passage in passages])
    return np.bincount(owners, products, minlength=len(passages)).astype(np.float32)
