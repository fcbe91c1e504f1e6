"""scaling.py: the number of replicas for a load."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from vectord.cluster.ray.scaling import BUSY, WAITING_TOKENS, WaitingTokensPolicy


@dataclass
class Figures:
    aggregated_metrics: dict[str, dict[str, float]] | None = field(default_factory=dict)
    target_num_replicas: int = 2


@pytest.mark.parametrize(
    ("waiting", "busy", "expected"),
    [
        pytest.param([0, 0], [0.1, 0.1], 1, id="two idle replicas become one"),
        pytest.param([0, 0], [0.0, 0.0], 0, id="no load: Ray applies the minimum"),
        pytest.param([900, 100], [1.0, 1.0], 10, id="a queue adds replicas"),
        pytest.param([0, 0], [0.75, 0.75], 2, id="busy replicas without a queue stay"),
        pytest.param([0, 0], [0.9, 0.9], 3, id="too busy without a queue"),
    ],
)
def test_queued_tokens_and_busy_time_determine_the_number(
    waiting: list[float], busy: list[float], expected: int
) -> None:
    """At most 100 queued tokens and 80 % busy time for each replica."""
    figures = Figures({WAITING_TOKENS: dict(zip("ab", waiting, strict=True)), BUSY: dict(zip("ab", busy, strict=True))})
    assert WaitingTokensPolicy(tokens_per_replica=100)(figures)[0] == expected


@pytest.mark.parametrize("figures", [None, {}], ids=["nothing", "no figures"])
def test_without_figures_nothing_changes(figures: dict[str, dict[str, float]] | None) -> None:
    """Replicas that are starting or disconnected do not count as idle."""
    assert WaitingTokensPolicy(tokens_per_replica=100)(Figures(figures))[0] == 2
