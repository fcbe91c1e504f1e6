"""Percentiles and rates of the load generator."""

from __future__ import annotations

from vectord.tools.bench import Figures, figures_of


def figures(latencies_ms: list[float], failures: dict[str, int]) -> Figures:
    return figures_of("x", latencies_ms, failures, concurrency=1, units_per_request=4, wall_s=2.0, cpu_s=0.5)


def test_percentiles_are_interpolated() -> None:
    """As numpy's default method. Without a successful request there are none."""
    found = figures([4.0, 1.0, 3.0, 2.0], {})
    assert (found.avg_ms, found.p50_ms, found.min_ms, found.max_ms) == (2.5, 2.5, 1.0, 4.0)
    assert figures([7.0], {}).p99_ms == 7.0
    assert figures([], {"status 503": 1}).p50_ms is None


def test_rates_count_successful_requests_only() -> None:
    """10 responses of 4 texts in 2 s, and 5 failures."""
    found = figures([5.0] * 10, {"status 503": 5})
    assert (found.requests, found.requests_per_s, found.units_per_s, found.client_busy) == (15, 5.0, 20.0, 0.25)
