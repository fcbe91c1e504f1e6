"""What autoscalers and operators read of a server's load."""

from __future__ import annotations

from typing import Any

import pytest

from vectord.engine.observer import BatchReport
from vectord.products.vectord.metrics import OwnFamilies
from vectord.schema import Gauges


def gauges(**changes: Any) -> Gauges:
    idle: dict[str, Any] = {"queued_tokens": {"interactive": 0, "bulk": 0}, "wait_s": 0.0, "under_way": 0}
    fixed: dict[str, Any] = {"cached_texts": 0, "cache_bytes": 0, "memory_bytes": {}, "devices": {}}
    return Gauges(max_wait_s=10.0, places=8, **{**idle, **fixed, **changes})


def batch(**changes: Any) -> BatchReport:
    facts: dict[str, Any] = {"texts": 4, "tokens": 60, "padding_tokens": 20, "bulk_tokens": 45, "max_tokens": 100}
    told = {"model": "m", "device": "cpu", "seconds": 0.02, "streams": 1, "failed": False, "scores": False}
    return BatchReport(**{**facts, **told, **changes})


@pytest.mark.parametrize(
    ("changes", "saturation"),
    [({}, 0.0), ({"wait_s": 4.0, "under_way": 2}, 0.4), ({"wait_s": 1.0, "under_way": 6}, 0.75), ({"wait_s": 99.0}, 1)],
    ids=["idle", "the wait", "the places", "no more than full"],
)
def test_saturation_is_the_largest_share(changes: dict[str, Any], saturation: float) -> None:
    """From 0 to 1: of the wait that is allowed, or of the places there are; an idle device adds nothing."""
    families = OwnFamilies("0")
    families.look(gauges(**changes))
    assert families.saturation.values[()] == pytest.approx(saturation)


def test_a_device_without_a_pause_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though nobody waits: what comes next will."""
    families = OwnFamilies("0")
    monkeypatch.setattr(families._busy, "share", lambda: 0.9)
    families.look(gauges())
    assert families.saturation.values[()] == 0.9


def test_a_batch_is_told_by_lane_with_its_fill_and_padding() -> None:
    """Padding fills a forward, too, and is no token of anybody's."""
    families = OwnFamilies("0")
    families.batch_ran(batch())
    assert families.batch_fill.children[()].total == pytest.approx(0.8)
    assert families.padding_tokens.values["m",] == 20
    assert (families.forward_tokens.values["m", "interactive"], families.forward_tokens.values["m", "bulk"]) == (15, 45)
    families.look(gauges(queued_tokens={"interactive": 5, "bulk": 7}))
    assert families.lane_queue_tokens.values == {("interactive",): 5, ("bulk",): 7}
