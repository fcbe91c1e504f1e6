"""What is tried again, and when."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vectord.client import errors
from vectord.client.errors import ClientError, Overloaded, TryLater
from vectord.client.transport import FIRST_WAIT_S, JITTER, LONGEST_WAIT_S, Retries

ALL = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ClientError)]


def retries(chance: float = 0.0, max_retries: int = 20, within_s: float = 100.0) -> Retries:
    return Retries(max_retries=max_retries, within_s=within_s, chance=lambda: chance)


def overloaded(retry_after_s: float | None = None) -> Overloaded:
    error = Overloaded("full")
    error.retry_after_s = retry_after_s
    return error


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_only_what_may_pass_is_tried_again(kind):
    """Overload, a server that is not there or not ready; nothing that would fail again."""
    assert (retries().wait_s(kind("x"), 1, 0.0) is not None) == issubclass(kind, TryLater)


def test_waits_double_up_to_the_longest():
    """Where the server says nothing."""
    waits = [retries().wait_s(overloaded(), attempts, 0.0) for attempts in range(1, 8)]
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert (waits[0], waits[-1]) == (FIRST_WAIT_S, LONGEST_WAIT_S)


@given(st.floats(0, 50), st.floats(0, 1), st.integers(1, 20))
@settings(deadline=None)
def test_a_wait_is_never_shorter_than_the_server_asks_for(told_s, chance, attempts):
    """It is spread upwards only, by a quarter at most."""
    wait_s = retries(chance).wait_s(overloaded(told_s), attempts, 0.0)
    assert told_s <= wait_s <= told_s * (1 + JITTER)


def test_so_many_retries_and_no_more():
    """max_retries 0 is a single attempt."""
    assert retries(max_retries=2).wait_s(overloaded(), 2, 0.0) is not None
    assert retries(max_retries=2).wait_s(overloaded(), 3, 0.0) is None
    assert retries(max_retries=0).wait_s(overloaded(), 1, 0.0) is None


def test_nobody_waits_for_an_attempt_that_would_come_too_late():
    """The time counts from the first attempt, the wait included."""
    assert retries(within_s=10).wait_s(overloaded(4), 1, 6.0) == 4
    assert retries(within_s=10).wait_s(overloaded(4), 1, 6.1) is None
    assert retries(within_s=10).wait_s(overloaded(3600), 1, 0.0) is None
