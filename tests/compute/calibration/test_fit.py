"""calibration/fit.py: rounding loses little, and sensitive places stay unrounded."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from vectord.compute.calibration import fit
from vectord.compute.calibration.fit import (
    GOAL,
    GOAL_TEN,
    Kept,
    Observed,
    choose_places,
    compare,
    fit_place,
    round_rows,
    round_weights,
)

RNG = np.random.default_rng(0)


def observed(rows: np.ndarray) -> Observed:
    return Observed(rows.astype(np.float32), rows.min(0).astype(np.float32), rows.max(0).astype(np.float32))


@pytest.mark.parametrize("weight_steps", [63, 127])
def test_normal_numbers_lose_little(weight_steps: int) -> None:
    """A product in int8 has a squared error of at most a thousandth."""
    fitted = fit_place(observed(RNG.normal(size=(64, 32))), [RNG.normal(size=(8, 32)).astype(np.float32)], weight_steps)
    assert fitted.loss < 1e-3


def test_large_columns_move_into_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise one column's magnitude would decide the steps of all."""
    rows = RNG.normal(size=(64, 32))
    rows[:, 5] *= 200
    weights = RNG.normal(size=(8, 32)).astype(np.float32)
    weights[:, 5] /= 100
    smooth = fit_place(observed(rows), [weights], 127)
    monkeypatch.setattr(fit, "STRENGTHS", (0.0,))
    plain = fit_place(observed(rows), [weights], 127)
    assert smooth.loss < plain.loss / 20
    assert smooth.place.smooth[5] == smooth.place.smooth.max()
    assert not (plain.place.smooth - 1).any()


def test_rounding_uses_the_steps_of_the_range() -> None:
    """0 stays 0, so that padding does, and nothing leaves the range."""
    place = fit_place(observed(RNG.normal(size=(64, 4)) + 1), [np.eye(4, dtype=np.float32)], 127).place
    rounded = round_rows(np.array([[0, 0, 0, 0], [99, -99, 0, 0]], np.float32), place)
    assert not rounded[0].any()
    step = (place.high - place.low) / 255
    assert place.low - step <= rounded.min() and rounded.max() <= place.high + step
    np.testing.assert_allclose(round_weights(np.eye(4, dtype=np.float32), 63), np.eye(4), atol=1e-6)


def test_zero_is_a_number_of_the_range() -> None:
    """The runtime rounds to whole steps from the lowest number; the fit assumes that 0 is one of them."""
    place = fit_place(observed(RNG.normal(size=(64, 4)) + 0.3), [np.eye(4, dtype=np.float32)], 127).place
    below = -place.low / ((place.high - place.low) / 255)
    assert below == pytest.approx(round(below), abs=1e-6)


def test_few_large_rows_do_not_hide_the_loss_of_the_others() -> None:
    """Two tokens with huge products are exact; the usual tokens lose most of their size."""
    rows = RNG.normal(size=(64, 8))
    rows[:2] = 0
    rows[:2, 5] = 1e4
    weights = RNG.normal(size=(8, 8)).astype(np.float32)
    assert fit_place(observed(rows), [weights], 127).loss > 10 * fit_place(observed(rows[2:]), [weights], 127).loss


def test_a_changed_order_of_texts_is_found() -> None:
    """Cosines can be high while the nearest texts change, if all texts are similar."""
    expected = unit(RNG.normal(size=(100, 16)) * 0.05 + 1)
    assert compare(expected, expected, ranked=True) == Kept(pytest.approx(1), pytest.approx(1), 1.0)
    found = compare(unit(expected + RNG.normal(size=(100, 16)) * 0.01), expected, ranked=True)
    assert found.mean_cosine > 0.997 and found.same_ten < 0.7
    assert not found.enough
    assert compare(np.full_like(expected, np.nan), expected, ranked=True).mean_cosine == 0


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def kept_of(costs: list[float]) -> Callable[[frozenset[int]], Kept]:
    def kept(places: frozenset[int]) -> Kept:
        cost = sum(costs[number] for number in places)
        return Kept(1 - cost / 10, 1 - cost, 1 - cost)

    return kept


@pytest.mark.parametrize(
    ("costs", "kept"),
    [
        ([0.001, 0.001, 0.001], set()),
        ([0.001, 0.1, 0.001], {1}),
        ([0.05, 0.1, 0.001, 0.06], {0, 1, 3}),
        ([0.1, 0.1], {0, 1}),
    ],
    ids=["none", "one", "three", "all"],
)
def test_the_worst_places_stay_unrounded(costs: list[float], kept: set[int]) -> None:
    """As few as possible, until the cosines and the order of texts are good enough."""
    chosen, found = choose_places(costs, kept_of(costs))
    assert chosen == set(range(len(costs))) - kept
    assert found.mean_cosine >= GOAL and found.same_ten >= GOAL_TEN


def test_few_places_are_tried_first() -> None:
    """If more places left out keep no more, as by chance, the few that are enough are found all the same."""
    tried: list[int] = []

    def kept(places: frozenset[int]) -> Kept:
        tried.append(32 - len(places))
        return Kept(1.0, 1.0, GOAL_TEN if tried[-1] in {3, 4, 5} else GOAL_TEN - 0.001)

    chosen, _ = choose_places([1.0] * 32, kept)
    assert len(chosen) == 29
    assert tried == [0, 1, 2, 4, 3]
