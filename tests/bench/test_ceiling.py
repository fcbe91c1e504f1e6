from __future__ import annotations

import pytest
from bench.ceiling import MODELS

MINILM = MODELS["minilm"]


def test_a_token_of_minilm_costs_21_2_megaflop() -> None:
    """From the model's shapes and their number."""
    assert pytest.approx(21.2e6, rel=0.01) == MINILM.flop_per_token


@pytest.mark.parametrize(("model", "parameters"), [("bge-m3", 302e6), ("qwen3", 440e6)])
def test_a_token_costs_two_operations_a_weight(model: str, parameters: float) -> None:
    """The linear layers of BGE-M3 have 302 million weights, those of Qwen3-0.6B 440 million."""
    assert pytest.approx(2 * parameters, rel=0.01) == MODELS[model].flop_per_token


def test_a_slow_shape_counts_by_the_time_it_takes() -> None:
    """Times add up, not rates: a shape at half the rate takes twice its time."""
    rates = dict.fromkeys(MINILM.shapes, 1e12) | {(384, 1536): 0.5e12}
    extra_s = MINILM.layers * 2 * 384 * 1536 / 1e12
    assert 1 / MINILM.tokens_per_s(rates) == pytest.approx(MINILM.flop_per_token / 1e12 + extra_s)
