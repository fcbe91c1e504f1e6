from __future__ import annotations

import pytest
from bench.ceiling import FLOP_PER_TOKEN, LAYERS, SHAPES, tokens_per_s


def test_a_token_of_minilm_costs_21_2_megaflop() -> None:
    """The shapes and their number are the model's."""
    assert pytest.approx(21.2e6, rel=0.01) == FLOP_PER_TOKEN


def test_equal_rates_give_rate_over_work() -> None:
    """Where every shape runs at one rate, the ceiling is that rate divided by the work of a token."""
    assert tokens_per_s(dict.fromkeys(SHAPES, 1e12)) == pytest.approx(1e12 / FLOP_PER_TOKEN)


def test_a_slow_shape_counts_by_the_time_it_takes() -> None:
    """Times add, not rates: a shape at half the rate costs its share of the work once more."""
    rates = dict.fromkeys(SHAPES, 1e12) | {(384, 1536): 0.5e12}
    extra_s = LAYERS * 2 * 384 * 1536 / 1e12
    assert 1 / tokens_per_s(rates) == pytest.approx(FLOP_PER_TOKEN / 1e12 + extra_s)
