"""Several engines are like one that has all their devices."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.server.fakes import FakeEngine

from vectord.cluster.remote.together import (
    gauges_together,
    lists_together,
    readiness_together,
    statistics_together,
)
from vectord.schema import DeviceMemory, Gauges, Statistics


def gauges(tokens: int, wait_s: float, device: str) -> Gauges:
    return Gauges(
        queued_tokens={"interactive": tokens, "bulk": 1},
        wait_s=wait_s,
        max_wait_s=30.0,
        under_way=2,
        places=10,
        cached_texts=3,
        cache_bytes=100,
        memory_bytes={"m": 7},
        devices={device: DeviceMemory(allocated=1, reserved=1, free=1, total=2)},
    )


@pytest.mark.parametrize(
    ("states", "seen"),
    [
        (("loading", "ready"), "ready"),
        (("failed", "stalled"), "stalled"),
        (("stalled", "loading"), "loading"),
        (("failed", "failed"), "failed"),
    ],
    ids=str,
)
def test_a_model_is_as_well_as_where_it_is_best(states: tuple[str, ...], seen: str) -> None:
    """A request goes there."""
    assert readiness_together({"m": state} for state in states) == {"m": seen}
    (info,) = FakeEngine().models().models
    lists = [replace(FakeEngine().models(), models=[replace(info, state=state)]) for state in states]  # type: ignore[arg-type]
    assert lists_together(lists).models[0].state == seen


def test_a_model_has_the_devices_of_all() -> None:
    """Also where two processes call theirs the same."""
    listed = FakeEngine().models()
    (info,) = listed.models
    each = [
        replace(listed, models=[replace(info, device=device, devices={device: state})])
        for device, state in (("cuda:0", "ready"), ("cuda:1", "lost"), ("cuda:0", "ready"))
    ]
    together = lists_together(each)  # type: ignore[arg-type]
    assert together.models[0].device == "cuda:0,cuda:1"
    assert together.models[0].devices == {"cuda:0": "ready", "cuda:1": "lost", "cuda:0/2": "ready"}
    assert together.limits.max_concurrent_requests == 3 * listed.limits.max_concurrent_requests


def test_what_waits_is_the_sum_and_how_long_is_the_longest() -> None:
    """Of caches, places and memory the sum; each device by its name."""
    together = gauges_together([gauges(5, 0.5, "cuda:0"), gauges(7, 2.0, "cuda:1")])
    assert together.queued_tokens == {"interactive": 12, "bulk": 2}
    assert (together.wait_s, together.max_wait_s) == (2.0, 30.0)
    assert (together.under_way, together.places, together.cached_texts, together.cache_bytes) == (4, 20, 6, 200)
    assert together.memory_bytes == {"m": 14}
    assert set(together.devices) == {"cuda:0", "cuda:1"}


def test_statistics_are_summed() -> None:
    """Since the start of the oldest."""
    one = Statistics(uptime_s=3.0, embed_requests=1, embed_texts=2, batches=3, refused_requests=4, device="cuda:0")
    other = replace(one, uptime_s=1.0, device="cuda:1")
    assert statistics_together([one, other]) == Statistics(
        uptime_s=3.0, embed_requests=2, embed_texts=4, batches=6, refused_requests=8, device="cuda:0,cuda:1"
    )
