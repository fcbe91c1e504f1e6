"""calibration/fit.py: rounding loses little, and sensitive places stay unrounded."""

from __future__ import annotations

import numpy as np
import pytest

from vectord.compute.calibration import fit
from vectord.compute.calibration.fit import GOAL, Observed, choose_places, fit_place, round_rows, round_weights

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


def cosines_of(costs: list[float]) -> object:
    def cosines(places: frozenset[int]) -> np.ndarray:
        tried.append(places)
        return np.full(4, 1 - sum(costs[number] for number in places), np.float32)

    tried: list[frozenset[int]] = []
    return cosines


@pytest.mark.parametrize(
    ("costs", "kept"),
    [
        ([0.001, 0.001, 0.001], set()),
        ([0.001, 0.1, 0.001], {1}),
        ([0.02, 0.1, 0.001, 0.03], {0, 1, 3}),
        ([0.1, 0.1], {0, 1}),
    ],
    ids=["none", "one", "three", "all"],
)
def test_the_worst_places_stay_unrounded(costs: list[float], kept: set[int]) -> None:
    """As few as possible, until the mean cosine reaches the goal."""
    chosen, found = choose_places(costs, cosines_of(costs))  # type: ignore[arg-type]
    assert chosen == set(range(len(costs))) - kept
    assert found.mean() >= GOAL
