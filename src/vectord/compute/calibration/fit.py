"""The arithmetic of int8: the best rounding of one place, and which places stay unrounded.

Plain numpy over a backend's recorded inputs; called in the loading thread. The smoothing is SmoothQuant's (Xiao et al.
2023, arXiv:2211.10438): it moves the magnitude of large columns of x into the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from vectord.compute.calibration.recipe import QuantizedPlace
from vectord.schema import Float32

DOCUMENTED_COSINE = 0.995  # mean cosine to float32 over an operator's texts
GOAL = DOCUMENTED_COSINE + 0.001  # mean over the held-out texts; other texts were up to 0.0005 lower
STRENGTHS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9)  # of the smoothing; 0: none
STEPS = 255  # between the lowest and the highest number
LEAST = np.float32(1e-6)


@dataclass(frozen=True, slots=True)
class Observed:
    """The recorded inputs of one place."""

    rows: Float32  # (R, H) some of the rows
    low: Float32  # (H,) over all of them
    high: Float32  # (H,)


@dataclass(frozen=True, slots=True)
class Fitted:
    place: QuantizedPlace
    loss: float  # of the products of the rows: squared error relative to squared size


def fit_place(observed: Observed, matrices: Sequence[Float32], weight_steps: int) -> Fitted:
    """Return the smoothing strength with the least loss. matrices: (O, H) each, all that read the place."""
    weights = np.concatenate(matrices)  # (O, H)
    products = observed.rows @ weights.T
    size = float(np.square(products).sum()) or 1.0
    tried = []
    for strength in STRENGTHS:
        place = _place(observed, weights, strength)
        rounded = round_rows(observed.rows, place) @ round_weights(weights * place.smooth, weight_steps).T
        tried.append(Fitted(place, float(np.square(rounded - products).sum()) / size))
    return min(tried, key=lambda fitted: fitted.loss)


def round_rows(rows: Float32, place: QuantizedPlace) -> Float32:
    """(R, H) as int8 represents them, divided by the smoothing."""
    step = np.float32((place.high - place.low) / STEPS)
    zero = np.round(-place.low / step)
    rounded: Float32 = (np.clip(np.round(rows / place.smooth / step) + zero, 0, STEPS) - zero) * step
    return rounded


def weight_scales(weights: Float32, weight_steps: int) -> Float32:
    """(O, H) -> (O, 1): each row's largest number is `weight_steps` scales."""
    scales: Float32 = np.maximum(np.abs(weights).max(axis=1, keepdims=True), LEAST) / np.float32(weight_steps)
    return scales


def round_weights(weights: Float32, weight_steps: int) -> Float32:
    scales = weight_scales(weights, weight_steps)
    return np.round(weights / scales) * scales


def choose_places(
    losses: Sequence[float], cosines: Callable[[frozenset[int]], Float32]
) -> tuple[frozenset[int], Float32]:
    """Return the places to compute in int8, and the resulting cosines.

    losses: each place's own. cosines: of the held-out texts against float32, for these places in int8. As few places as
    possible are left out, the worst first, so that the mean reaches GOAL; all of them if necessary.
    """
    worst_first = sorted(range(len(losses)), key=lambda number: -losses[number])
    enough, found = 0, cosines(frozenset(worst_first))
    too_few = -1 if found.mean() >= GOAL else 0
    if too_few == 0:
        enough, found = len(losses), np.ones_like(found)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        tried = cosines(frozenset(worst_first[middle:]))
        if tried.mean() >= GOAL:
            enough, found = middle, tried
        else:
            too_few = middle
    return frozenset(worst_first[enough:]), found


def _place(observed: Observed, weights: Float32, strength: float) -> QuantizedPlace:
    smooth = np.ones_like(observed.low)
    if strength:
        largest = np.maximum(np.maximum(-observed.low, observed.high), LEAST)
        of_weights = np.maximum(np.abs(weights).max(axis=0), LEAST)
        powers = strength * np.log(largest) - (1 - strength) * np.log(of_weights)
        smooth = np.exp(powers - powers.mean()).astype(np.float32)
    low = min(float((observed.low / smooth).min()), 0.0)
    high = max(float((observed.high / smooth).max()), float(LEAST))
    return QuantizedPlace(smooth, low, high)
