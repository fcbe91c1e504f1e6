"""The share of time in which forwards ran."""

from __future__ import annotations

import pytest

from vectord.observability.busy import MEMORY_S, Busy


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def watched(seconds: float, every_s: float, for_s: float) -> tuple[Busy, Clock]:
    """A device that ends a forward of so many seconds every so often."""
    clock = Clock()
    busy = Busy(clock)
    for _ in range(round(for_s / every_s)):
        clock.now_s += every_s
        busy.ran(seconds)
    return busy, clock


@pytest.mark.parametrize("forward_s", [0.001, 0.02, 1.0])
@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_it_is_the_share_however_long_a_forward_takes(forward_s: float, share: float) -> None:
    """Behind half a minute of the same load."""
    busy, _ = watched(forward_s, forward_s / share, 5 * MEMORY_S)
    assert busy.share() == pytest.approx(share, abs=0.06)


def test_an_idle_device_comes_to_rest() -> None:
    """Half after seven seconds, nothing after a minute."""
    busy, clock = watched(0.02, 0.02, 60)
    clock.now_s += 7
    assert busy.share() == pytest.approx(0.5, abs=0.01)
    clock.now_s += 60
    assert busy.share() < 0.01


def test_a_device_that_never_ran_is_idle() -> None:
    assert Busy(Clock()).share() == 0
