"""Histograms and the busy share."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vectord.observability.instruments import BusyShare, Histogram


@given(
    bounds=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=10, unique=True).map(sorted),
    values=st.lists(st.floats(-2e6, 2e6), max_size=50),
)
@settings(deadline=None, max_examples=100)
def test_a_bucket_counts_the_values_up_to_its_bound(bounds: list[float], values: list[float]) -> None:
    """Buckets are cumulative and inclusive; +Inf comes last; the sum is kept."""
    histogram = Histogram("h", "", bounds)
    for value in [*values, *bounds]:
        histogram.observe(value)
    shown = dict(histogram.children[()].cumulative())
    for bound in bounds:
        assert shown[repr(float(bound))] == sum(value <= bound for value in [*values, *bounds])
    assert shown["+Inf"] == len(values) + len(bounds)
    assert histogram.children[()].total == pytest.approx(sum(values) + sum(bounds), abs=1e-3)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def busy_for(seconds: float, every_s: float, for_s: float) -> tuple[BusyShare, Clock]:
    """A device that ends a forward of `seconds` every `every_s`."""
    clock = Clock()
    busy = BusyShare(clock)
    for _ in range(round(for_s / every_s)):
        clock.now_s += every_s
        busy.add(seconds)
    return busy, clock


@pytest.mark.parametrize("forward_s", [0.001, 1.0])
@pytest.mark.parametrize("share", [0.1, 1.0])
def test_the_share_does_not_depend_on_the_length_of_a_forward(forward_s: float, share: float) -> None:
    """After half a minute of constant load."""
    busy, _ = busy_for(forward_s, forward_s / share, 5 * BusyShare.MEMORY_S)
    assert busy.share() == pytest.approx(share, abs=0.06)


def test_the_share_of_an_idle_device_decays() -> None:
    """To half after seven seconds, to nothing after a minute; a device that never ran has none."""
    busy, clock = busy_for(0.02, 0.02, 60)
    clock.now_s += 7
    assert busy.share() == pytest.approx(0.5, abs=0.01)
    clock.now_s += 60
    assert busy.share() < 0.01
    assert BusyShare(Clock()).share() == 0
