"""The rows of `bench int8`."""

from __future__ import annotations

from typing import Any

from bench.int8 import rows


def measured(dtype: str, tokens: int, start_s: float) -> dict[str, Any]:
    return {
        "dtype auto": "bfloat16",
        "dtype int8": dtype,
        "auto": [{"tokens": 900, "elapsed_s": 1.0}, {"tokens": 1000, "elapsed_s": 1.0}],
        "int8": [{"tokens": tokens, "elapsed_s": 1.0}],
        "start auto": [1.0, 9.0, 0.5],
        "start int8": [start_s],
    }


def test_the_best_rounds_and_the_median_starts_are_compared() -> None:
    """Both targets can be met or missed."""
    usual, speed, start = rows({"folder/model": measured("int8", 1500, 1.2)})
    assert usual.tokens_per_s == 1000
    assert (speed.what, speed.value, speed.met) == ("folder/model, int8", "1.50 x", True)
    assert (start.value, start.met) == ("1.20 s, +0.20 s", True)
    _, speed, start = rows({"folder/model": measured("int8", 1300, 2.1)})
    assert (speed.met, start.met) == (False, False)


def test_a_model_without_int8_misses_no_target() -> None:
    """It runs twice in the same format."""
    _, unused = rows({"folder/model": measured("bfloat16", 1000, 1.0)})
    assert (unused.value, unused.met) == ("not used: it gains too little", None)
