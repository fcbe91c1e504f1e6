"""A service that fails, such as Redis, is skipped until it works again."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from tests.clock import Clock

from vectord import housekeeping
from vectord.housekeeping import RETRY_S, Breaker


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(housekeeping, "time", SimpleNamespace(monotonic=clock))
    return clock


def test_after_a_failure_one_call_per_interval_retries(clock: Clock) -> None:
    """The others are not let through until one succeeds."""
    breaker = Breaker("it", logging.getLogger("vectord.test"))
    assert [breaker.lets_pass() for _ in range(3)] == [True] * 3
    breaker.failed(OSError())
    assert (breaker.blocks, breaker.lets_pass()) == (True, False)
    for _ in range(2):
        clock.now_s += RETRY_S
        assert [breaker.lets_pass() for _ in range(3)] == [True, False, False]
    breaker.worked()
    assert (breaker.blocks, breaker.lets_pass(), breaker.lets_pass()) == (False, True, True)


def test_the_breaker_logs_each_change_once(caplog: pytest.LogCaptureFixture) -> None:
    """It logs the error's class only: a library's message may contain an address with a password."""
    breaker = Breaker("it", logging.getLogger("vectord.test"))
    for _ in range(3):
        breaker.failed(OSError("redis://user:secret@host"))
    breaker.worked()
    breaker.worked()
    assert caplog.messages == ["it fails (OSError): going on without it", "it works again"]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
