"""From a network's weights to sparse vectors. Pure numpy; called by execution.py."""

from __future__ import annotations

import numpy as np

from vectord.schema import Float32, Int32, Sparse


def from_tokens(ids: Int32, weights: Float32, unused: Int32) -> Sparse:
    """The largest weight of each token id. ids (n,), weights (n,) not below 0; `unused` ids (specials) do not count.

    Indices in order of first appearance. Source: FlagEmbedding's lexical weights.
    """
    counts = (weights > 0) & ~np.isin(ids, unused)
    kept, values = ids[counts], weights[counts]
    found, first, place = np.unique(kept, return_index=True, return_inverse=True)
    largest = np.zeros(len(found), np.float32)
    np.maximum.at(largest, place, values)
    order = np.argsort(first)
    return Sparse(found[order].astype(np.int32), largest[order])


def from_logits(logits: Float32) -> Sparse:
    """log(1 + x) of every word whose logit x is above 0. logits (V,). Source: sentence-transformers SpladePooling."""
    indices = np.flatnonzero(logits > 0).astype(np.int32)
    return Sparse(indices, np.log1p(logits[indices]))
