"""Amounts that are held together."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from vectord.budget import Budget

LIMIT = 100


def test_what_does_not_fit_is_not_held() -> None:
    """A smaller amount still fits."""
    budget = Budget(LIMIT)
    assert budget.hold(60)
    assert not budget.hold(41)
    assert budget.hold(40)
    assert budget.held == LIMIT


def test_an_amount_above_the_limit_is_held_alone() -> None:
    budget = Budget(LIMIT)
    assert budget.hold(1)
    assert not budget.hold(LIMIT + 1)
    budget.release(1)
    assert budget.hold(LIMIT + 1)
    assert not budget.hold(0)


def test_the_amount_that_reaches_the_limit_may_exceed_it() -> None:
    """Where that is permitted; nothing fits after it."""
    budget = Budget(LIMIT, overshoots=True)
    assert budget.hold(LIMIT - 1)
    assert budget.hold(LIMIT)
    assert not budget.hold(1)


def test_what_exists_already_is_held_beyond_the_limit() -> None:
    """Nothing else fits until it is released."""
    budget = Budget(LIMIT)
    for _ in range(2):
        budget.add(LIMIT)
    budget.release(LIMIT)
    assert budget.held == LIMIT
    assert not budget.hold(1)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_waiting_is_first_come_first_served() -> None:
    """A small amount does not overtake a large one that waits."""
    budget = Budget(LIMIT)
    assert budget.hold(60)
    large, small = [asyncio.create_task(budget.wait(amount)) for amount in (80, 10)]
    await settle()
    assert not large.done() and not small.done()
    budget.release(60)
    await asyncio.gather(large, small)
    assert budget.held == 90


async def test_a_cancelled_wait_holds_nothing() -> None:
    """And the next one continues."""
    budget = Budget(LIMIT)
    assert budget.hold(60)
    large, small = [asyncio.create_task(budget.wait(amount)) for amount in (80, 10)]
    await settle()
    large.cancel()
    await small
    with pytest.raises(asyncio.CancelledError):
        await large
    assert budget.held == 70


def test_threads_hold_no_more_than_the_limit() -> None:
    budget = Budget(LIMIT)
    with ThreadPoolExecutor(8) as threads:
        held = list(threads.map(lambda _: budget.hold(1), range(10 * LIMIT)))
    assert sum(held) == budget.held == LIMIT
