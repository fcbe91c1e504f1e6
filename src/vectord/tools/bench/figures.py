"""Counts and percentiles of one scenario. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    scenario: str
    requests: int
    ok: int
    failed: int
    concurrency: int
    wall_s: float
    requests_per_s: float  # of those answered
    units_per_s: float  # texts or passages of those answered
    avg_ms: float | None  # None: none was answered
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    min_ms: float | None
    max_ms: float | None
    client_busy: float  # of one core, the load generator's share of the wall time; near 1 it is the limit
    failures: dict[str, int] = field(default_factory=dict)  # what was told, and how often


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Of ascending values, between the two nearest as a straight line."""
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def figures(
    scenario: str,
    *,
    latencies_ms: Sequence[float],
    failures: dict[str, int],
    concurrency: int,
    units_per_request: int,
    wall_s: float,
    cpu_s: float,
) -> Figures:
    """latencies_ms: of the answered requests, in any order."""
    ordered = sorted(latencies_ms)
    wall_s = max(wall_s, 1e-9)

    def at(percent: float) -> float | None:
        return round(percentile(ordered, percent), 3) if ordered else None

    return Figures(
        scenario=scenario,
        requests=len(ordered) + sum(failures.values()),
        ok=len(ordered),
        failed=sum(failures.values()),
        concurrency=concurrency,
        wall_s=round(wall_s, 4),
        requests_per_s=round(len(ordered) / wall_s, 2),
        units_per_s=round(len(ordered) * units_per_request / wall_s, 2),
        avg_ms=round(sum(ordered) / len(ordered), 3) if ordered else None,
        p50_ms=at(50),
        p95_ms=at(95),
        p99_ms=at(99),
        min_ms=at(0),
        max_ms=at(100),
        client_busy=round(min(cpu_s / wall_s, 1.0), 3),
        failures=failures,
    )
