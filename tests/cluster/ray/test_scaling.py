"""How many replicas a load asks for."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from vectord.cluster.ray.scaling import BUSY, WAITING_TOKENS, TokensWaiting


@dataclass
class Told:
    aggregated_metrics: dict[str, dict[str, float]] | None = field(default_factory=dict)
    target_num_replicas: int = 2


@pytest.mark.parametrize(
    ("waiting", "busy", "wanted"),
    [
        pytest.param([0, 0], [0.1, 0.1], 1, id="two idle ones are one too many"),
        pytest.param([0, 0], [0.0, 0.0], 0, id="nothing to do: Ray's bound is the least"),
        pytest.param([900, 100], [1.0, 1.0], 10, id="a queue asks for more"),
        pytest.param([0, 0], [0.75, 0.75], 2, id="busy ones without a queue stay"),
        pytest.param([0, 0], [0.9, 0.9], 3, id="too busy, though nothing waits yet"),
    ],
)
def test_work_that_waits_makes_replicas(waiting: list[float], busy: list[float], wanted: int) -> None:
    """Each has 100 tokens waiting at most, and a fifth of its time to spare."""
    told = Told({WAITING_TOKENS: dict(zip("ab", waiting, strict=True)), BUSY: dict(zip("ab", busy, strict=True))})
    assert TokensWaiting(tokens_per_replica=100)(told)[0] == wanted


@pytest.mark.parametrize("told", [None, {}], ids=["nothing", "no figures"])
def test_without_figures_nothing_changes(told: dict[str, dict[str, float]] | None) -> None:
    """Replicas that are starting, or cut off, are not taken for idle."""
    assert TokensWaiting(tokens_per_replica=100)(Told(told))[0] == 2
