"""TEI's figures in headers."""

from __future__ import annotations

from tests.products.results import usage

from vectord.products.common.usage import compute_headers


def test_times_are_whole_milliseconds_and_tokens_those_that_ran():
    """Begun milliseconds do not count; of a text that was cut only what was read does."""
    assert compute_headers(usage([(3, 3), (9, 4)])) == {
        "x-compute-type": "gpu+optimized",
        "x-compute-time": "1234",
        "x-compute-characters": "40",
        "x-compute-tokens": "7",
        "x-total-time": "1234",
        "x-tokenization-time": "1",
        "x-queue-time": "2",
        "x-inference-time": "35",
    }


def test_a_dialect_may_count_characters_its_own_way():
    """0 is a count, too."""
    assert compute_headers(usage(), characters=0)["x-compute-characters"] == "0"
