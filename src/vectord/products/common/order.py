"""Best first: how every dialect orders scores that an answer shows sorted."""

from __future__ import annotations

import numpy as np

from vectord.schema import Float32


def best_first(scores: Float32) -> list[int]:
    """Places of `scores` (N,) from the highest score to the lowest; equal ones stay in their order."""
    order: list[int] = np.argsort(-scores, kind="stable").tolist()
    return order
