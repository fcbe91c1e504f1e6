"""Scores of passages from what a model made of them. Pure numpy; called by reranking.py."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vectord.schema import Float32, Sparse


def sigmoid(logits: Float32) -> Float32:
    """1 / (1 + exp(-x)), which neither overflows nor gives NaN."""
    return (0.5 * (1 + np.tanh(0.5 * logits.astype(np.float64)))).astype(np.float32)


def softmax(logits: Float32) -> Float32:
    """(N, L) to shares of each row, which sum to 1."""
    shares = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    scaled: Float32 = (shares / shares.sum(axis=-1, keepdims=True)).astype(np.float32)
    return scaled


def sums_of_best(query: Float32, passages: Sequence[Float32]) -> Float32:
    """For each passage, the sum over the query's rows of the largest product with any of the passage's rows.

    query (q, C), passages (n_i, C) each, rows of length 1. Returns (N,); a passage without rows scores 0. Source:
    ColBERT's MaxSim, as pylate computes it.
    """
    scores = [
        float((query @ passage.T).max(axis=1).sum(dtype=np.float64)) if len(passage) else 0.0 for passage in passages
    ]
    return np.array(scores, np.float32)


def dots(query: Sparse, passages: Sequence[Sparse]) -> Float32:
    """Products of the query's sparse vector with each passage's: over shared indices, of their values. Returns (N,)."""
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
