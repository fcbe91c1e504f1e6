"""Refused early, and told honestly when to come back."""

from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vectord.engine.admission import MAX_QUEUED_TOKENS, Admission, Speed, check_room, check_wait
from vectord.errors import Overloaded, Unavailable


def test_places_are_counted_and_given_back():
    """The request above the limit is refused; when one leaves, the next may come in."""
    admission = Admission(1)
    with admission.request():
        with pytest.raises(Overloaded) as refused, admission.request():
            pass
        assert refused.value.retry_after_s >= 1
    with admission.request():
        assert admission.under_way == 1
    assert admission.under_way == 0


def test_a_request_that_fails_gives_its_place_back():
    """Whatever ends it."""
    admission = Admission(1)
    with pytest.raises(ZeroDivisionError), admission.request():
        raise ZeroDivisionError
    assert admission.under_way == 0


async def test_draining_waits_for_those_inside_and_lets_nobody_in():
    """`drain` returns with the last request, not before."""
    admission = Admission(10)
    with admission.request():
        draining = asyncio.create_task(admission.drain())
        await asyncio.sleep(0)
        assert not draining.done()
        with pytest.raises(Unavailable), admission.request():
            pass
    await asyncio.wait_for(draining, 5)


def test_speed_is_unknown_until_measured_then_that_of_all_streams():
    """A server that was never busy refuses nobody; afterwards two streams of 500 tokens/s make 1,000."""
    speed = Speed(streams=2)
    assert speed.tokens_per_s == math.inf
    check_wait(1e9, speed.tokens_per_s, max_wait_s=1)
    for _ in range(3):
        speed.ran(100, 0.2)
    assert speed.tokens_per_s == pytest.approx(1000)


def test_speed_follows_the_device():
    """A device that has become ten times slower is known to be so after some batches."""
    speed = Speed(streams=1)
    for _ in range(100):
        speed.ran(1000, 1)
    for _ in range(60):
        speed.ran(1000, 10)
    assert speed.tokens_per_s == pytest.approx(100, rel=0.1)


@given(st.floats(0, 1e7), st.floats(1, 1e6), st.floats(0.1, 100))
@settings(deadline=None, max_examples=100)
def test_a_refusal_says_when_the_wait_would_be_short_enough(ahead, tokens_per_s, max_wait_s):
    """Refused exactly when the wait exceeds the limit; after retry_after_s of work, the same would be accepted."""
    if ahead / tokens_per_s <= max_wait_s:
        check_wait(ahead, tokens_per_s, max_wait_s)
        return
    with pytest.raises(Overloaded) as refused:
        check_wait(ahead, tokens_per_s, max_wait_s)
    retry_after_s = refused.value.retry_after_s
    assert retry_after_s >= 1
    left = max(0.0, ahead - retry_after_s * tokens_per_s)
    check_wait(left, tokens_per_s, max_wait_s * (1 + 1e-6) + 1e-6)  # rounding


def test_the_queue_has_a_hard_bound():
    """However many clients ask: what waits cannot fill the memory."""
    check_room(MAX_QUEUED_TOKENS - 1, 1, 1000.0)
    check_room(0, MAX_QUEUED_TOKENS + 1, 1000.0)
    with pytest.raises(Overloaded) as refused:
        check_room(MAX_QUEUED_TOKENS - 1, 5001, 1000.0)
    assert refused.value.retry_after_s == pytest.approx(5)
