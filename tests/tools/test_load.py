"""Percentiles and rates of the load generator."""

from __future__ import annotations

from vectord.tools.load import figures, percentile


def test_percentiles_are_interpolated() -> None:
    """As numpy's default method."""
    assert percentile([1.0, 2.0, 3.0, 4.0], 50) == 2.5
    assert percentile([1.0, 2.0, 3.0, 4.0], 100) == 4.0
    assert percentile([7.0], 99) == 7.0


def test_rates_count_successful_requests_only() -> None:
    """10 responses of 4 texts in 2 s, and 5 failures."""
    found = figures(
        "x",
        latencies_ms=[5.0] * 10,
        failures={"status 503": 5},
        concurrency=1,
        units_per_request=4,
        wall_s=2.0,
        cpu_s=0.5,
    )
    assert (found.requests, found.requests_per_s, found.units_per_s, found.client_busy) == (15, 5.0, 20.0, 0.25)
