"""Token counts and times of a response."""

from __future__ import annotations

import msgspec
import pytest
from tests.products.results import usage

from vectord.products.common.vectors import TokenUsage, dump_json, token_usage
from vectord.products.tei.usage import compute_headers
from vectord.schema import TextLength, Usage


def test_processed_tokens_are_counted():
    """Tokens that the model read, also those of a query or a second model. Both keys have the same number."""
    counted = Usage(lengths=[TextLength(3, 3), TextLength(4, 4)], characters=9, further_tokens=6)
    assert token_usage(counted) == {"prompt_tokens": 13, "total_tokens": 13}


def test_truncated_inputs_are_listed():
    """Also those of which characters were dropped before tokenization. Without any, the key is absent."""
    assert token_usage(usage([(3, 3), (9, 4), (5, 4)]))["truncated_inputs"] == [1, 2]
    assert token_usage(Usage(lengths=[TextLength(3, 3, 7)], characters=9))["truncated_inputs"] == [0]
    assert "truncated_inputs" not in token_usage(usage([(3, 3)]))


def test_the_usage_fits_its_schema():
    """With and without truncated inputs."""
    for counted in (usage([(3, 3)]), usage([(9, 4)])):
        shown = token_usage(counted)
        assert msgspec.to_builtins(msgspec.json.decode(dump_json(shown), type=TokenUsage)) == shown


def test_teis_headers_have_whole_milliseconds_and_processed_tokens():
    """Times are rounded down. A product may count characters in its own way; 0 is a count."""
    assert compute_headers(usage([(3, 3), (9, 4)])) == {
        "x-compute-type": "cpu+optimized",
        "x-compute-time": "1234",
        "x-compute-characters": "40",
        "x-compute-tokens": "7",
        "x-total-time": "1234",
        "x-tokenization-time": "1",
        "x-queue-time": "2",
        "x-inference-time": "35",
    }
    assert compute_headers(usage(), characters=0)["x-compute-characters"] == "0"


@pytest.mark.parametrize(
    ("device", "compute_type"),
    [
        ("cpu", "cpu+optimized"),
        ("cuda:0,cuda:1", "gpu+optimized"),
        ("mps", "gpu+optimized"),
        ("auto", None),
        ("", None),
    ],
)
def test_the_compute_type_names_what_computed(device, compute_type):
    """TEI says gpu+optimized on every device. Absent if a handler class selects its device, and if nothing ran."""
    counted = Usage(lengths=(), characters=0, device=device)
    assert compute_headers(counted).get("x-compute-type") == compute_type
