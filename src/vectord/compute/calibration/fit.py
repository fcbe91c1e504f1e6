"""The arithmetic of int8: the best rounding of one place, and which places stay unrounded.

Plain numpy over a backend's recorded inputs; called in the loading thread. The smoothing is SmoothQuant's (Xiao et al.
2023, arXiv:2211.10438): it moves the magnitude of large columns of x into the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vectord.compute.calibration.recipe import QuantizedPlace
from vectord.schema import Float32

DOCUMENTED_COSINE = 0.995  # mean cosine to float32 over an operator's texts
GOAL = DOCUMENTED_COSINE + 0.001  # mean over the sample's texts; other texts were up to 0.0005 lower
# Of the ten texts nearest to each, the mean share that stays among them. 0.963 and 0.965 with the built-in texts were
# 0.972 and 0.974 for 100 queries over 300 passages of documentation (MiniLM and mpnet).
GOAL_TEN = 0.963
NEAREST = 10
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
    """loss: squared error of a row's products relative to their squared size, the mean over the rows.

    By the sum over the rows instead, a few tokens with huge products hide the error of all others: the second matrix of
    MiniLM's first feed-forward block then seems the least sensitive one of the model, and is the most sensitive one.
    """

    place: QuantizedPlace
    loss: float


@dataclass(frozen=True, slots=True)
class Kept:
    """How close vectors in int8 are to those in float32."""

    mean_cosine: float
    least_cosine: float
    same_ten: float  # mean share of the texts nearest to each that stay so; 1.0 if texts have no vectors

    @property
    def enough(self) -> bool:
        return self.mean_cosine >= GOAL and self.same_ten >= GOAL_TEN


def fit_place(observed: Observed, matrices: Sequence[Float32], weight_steps: int) -> Fitted:
    """Return the smoothing strength with the least squared error. matrices: (O, H) each, all that read the place."""
    weights = np.concatenate(matrices)  # (O, H)
    products = observed.rows @ weights.T
    sizes = np.maximum(np.square(products).sum(axis=1), LEAST)
    tried = []
    for strength in STRENGTHS:
        place = _place(observed, weights, strength)
        rounded = round_rows(observed.rows, place) @ round_weights(weights * place.smooth, weight_steps).T
        errors = np.square(rounded - products).sum(axis=1)
        tried.append((float(errors.sum()), Fitted(place, float((errors / sizes).mean()))))
    return min(tried, key=lambda one: one[0])[1]


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


def compare(vectors: Float32, expected: Float32, *, ranked: bool) -> Kept:
    """Both (N, D), each row of norm 1. ranked: whether rows are of texts, whose order in a search matters."""
    cosines = np.nan_to_num(np.einsum("nd,nd->n", vectors, expected))
    same_ten = _same_nearest(np.nan_to_num(vectors), expected) if ranked else 1.0
    return Kept(float(cosines.mean()), float(cosines.min()), same_ten)


def choose_places(losses: Sequence[float], kept: Callable[[frozenset[int]], Kept]) -> tuple[frozenset[int], Kept]:
    """Return the places to compute in int8, and what they keep.

    losses: each place's own. kept: measured with these places in int8. As few places as possible are left out, the
    worst first, so that enough is kept; all of them if necessary.
    """
    worst_first = sorted(range(len(losses)), key=lambda number: -losses[number])
    # By doubling, then by halves. Halves alone left out 25 of mpnet's 48 places, although 11 are about enough: beyond,
    # what is kept hardly grows, and the chance of a single trial decided.
    too_few, enough, found = -1, 0, kept(frozenset(worst_first))
    while not found.enough and enough < len(losses):
        too_few, enough = enough, min(max(1, 2 * enough), len(losses))
        found = kept(frozenset(worst_first[enough:])) if enough < len(losses) else Kept(1.0, 1.0, 1.0)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        tried = kept(frozenset(worst_first[middle:]))
        if tried.enough:
            enough, found = middle, tried
        else:
            too_few = middle
    return frozenset(worst_first[enough:]), found


def _same_nearest(vectors: Float32, expected: Float32) -> float:
    """The mean share of the rows nearest to each that stay among them: ten of 80 rows and more, else an eighth."""
    count = min(NEAREST, max(1, len(expected) // 8))
    pairs = zip(_nearest(vectors, count), _nearest(expected, count), strict=True)
    return float(np.mean([np.isin(found, wanted).mean() for found, wanted in pairs]))


def _nearest(vectors: Float32, count: int) -> npt.NDArray[np.intp]:
    """(N, count) the rows nearest to each row, without itself."""
    similarities = vectors @ vectors.T
    np.fill_diagonal(similarities, -np.inf)
    return np.argsort(-similarities, axis=1, kind="stable")[:, :count]


def _place(observed: Observed, weights: Float32, strength: float) -> QuantizedPlace:
    smooth = np.ones_like(observed.low)
    if strength:
        largest = np.maximum(np.maximum(-observed.low, observed.high), LEAST)
        of_weights = np.maximum(np.abs(weights).max(axis=0), LEAST)
        powers = strength * np.log(largest) - (1 - strength) * np.log(of_weights)
        smooth = np.exp(powers - powers.mean()).astype(np.float32)
    low = min(float((observed.low / smooth).min()), 0.0)
    high = max(float((observed.high / smooth).max()), float(LEAST))
    # Moved by less than a step so that 0 is one of the range's numbers. Otherwise the runtime would round to numbers
    # other than round_rows does, and 0 would not stay 0.
    step = (high - low) / STEPS
    below = round(-low / step)
    return QuantizedPlace(smooth, -below * step, (STEPS - below) * step)
