"""Something that is away is tried now and then."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from tests.engine.fakes import Clock

from vectord.engine.cache import breaker
from vectord.engine.cache.breaker import RETRY_S, Breaker


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(breaker, "time", SimpleNamespace(monotonic=clock))
    return clock


def test_after_a_failure_one_call_tries_in_each_interval(clock: Clock) -> None:
    """The others go without, until one works."""
    it = Breaker("it")
    assert [it.lets_pass() for _ in range(3)] == [True] * 3
    it.failed(OSError())
    assert (it.waits, it.lets_pass()) == (True, False)
    clock.now_s += RETRY_S
    assert [it.lets_pass() for _ in range(3)] == [True, False, False]
    clock.now_s += RETRY_S
    assert [it.lets_pass() for _ in range(3)] == [True, False, False]
    it.worked()
    assert (it.waits, it.lets_pass(), it.lets_pass()) == (False, True, True)


def test_the_log_tells_once_and_never_the_words(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """A library's message may hold an address with a password."""
    it = Breaker("it")
    for _ in range(3):
        it.failed(OSError("redis://user:secret@host"))
    it.worked()
    it.worked()
    assert [record.getMessage() for record in caplog.records] == [
        "it fails (OSError): going on without it",
        "it works again",
    ]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
