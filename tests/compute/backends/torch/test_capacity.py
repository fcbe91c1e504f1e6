"""The tokens of a forward: the measurement, and the decision."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vectord.compute.backends.base import TextLimit
from vectord.compute.backends.torch.capacity import (
    FIRST_TOKENS,
    GIB,
    LEAST_GAIN,
    MOST_TOKENS,
    Point,
    choose_budget,
    launch_bound,
    measure,
    sample_texts,
    texts_by_memory,
)

PLENTY = 2**60


@st.composite
def points(draw: st.DrawFn) -> list[Point]:
    """Points of any device, each with twice the tokens of the one before."""
    number = draw(st.integers(0, 8))
    return [Point(FIRST_TOKENS << i, draw(st.floats(1e-6, 1e3)), draw(st.integers(0, 2**40))) for i in range(number)]


def device(full_at: int, bytes_a_token: int = 1000, memory: int = PLENTY) -> Callable[[int], Point]:
    """A probe of a device whose speed grows with the batch until `full_at` tokens."""

    def probe(tokens: int) -> Point:
        if tokens * bytes_a_token > memory:
            raise MemoryError
        return Point(tokens, max(tokens, full_at) / 1e6, tokens * bytes_a_token)

    return probe


@given(measured=points(), room_bytes=st.integers(0, 2**41), otherwise=st.integers(1, 2**17))
def test_the_budget_fits_the_room(measured: list[Point], room_bytes: int, otherwise: int) -> None:
    """For any points: a measured size, or a part of the first, within the memory."""
    budget = choose_budget(measured, room_bytes, otherwise)
    if not measured:
        assert budget == otherwise
        return
    assert 1 <= budget <= measured[-1].tokens
    point = next((point for point in measured if point.tokens == budget), measured[0])
    assert budget == 1 or point.peak_bytes * budget // point.tokens <= room_bytes


@given(measured=points())
def test_no_larger_batch_than_worthwhile(measured: list[Point]) -> None:
    """Every step up to the budget gained 5 %."""
    budget = choose_budget(measured, PLENTY, 1)
    taken = [point.tokens_per_s for point in measured if point.tokens <= budget]
    assert all(faster >= LEAST_GAIN * slower for slower, faster in pairwise(taken))


@pytest.mark.parametrize(
    ("full_at", "room_bytes", "budget"),
    [
        (8192, PLENTY, 8192),
        (10**6, PLENTY, MOST_TOKENS),
        (8192, 4_100_000, 4096),
        (1, PLENTY, 1024),
        (8192, 512_000, 512),
    ],
    ids=["where speed ends", "the most there is", "what fits", "at once", "less than the first"],
)
def test_a_device_is_measured(full_at: int, room_bytes: int, budget: int) -> None:
    """By its speed and its memory."""
    assert choose_budget(measure(device(full_at), room_bytes, 60.0, now_s=lambda: 0.0), room_bytes, 1) == budget


def test_out_of_memory_ends_the_measurement() -> None:
    """For example if another process takes the rest meanwhile."""
    measured = measure(device(10**6, memory=3_000_000), PLENTY, 60.0, now_s=lambda: 0.0)
    assert [point.tokens for point in measured] == [1024, 2048]


def test_measuring_ends_with_its_time() -> None:
    """The first batch always runs; none starts that could end too late."""
    clock = count(step=4.0)
    measured = measure(device(10**6), PLENTY, 10.0, now_s=lambda: next(clock))
    assert [point.tokens for point in measured] == [1024, 2048, 4096]
    assert len(measure(device(10**6), PLENTY, 1e-9, now_s=lambda: next(clock))) == 1


@given(tokens=st.integers(1, 5000), longest=st.integers(1, 600))
def test_a_sample_has_the_requested_tokens(tokens: int, longest: int) -> None:
    """In texts none of which is too long or empty; the same each time."""
    texts = sample_texts(tokens, longest, 7)
    lengths = np.diff(texts.cu_seqlens)
    assert texts.ids.size == tokens == texts.cu_seqlens[-1]
    assert 1 <= lengths.min() <= lengths.max() <= longest
    assert texts.ids.max() < 7
    assert (sample_texts(tokens, longest, 7).cu_seqlens == texts.cu_seqlens).all()


@pytest.mark.parametrize(("gib", "short", "long"), [(4, None, 3), (5, 32, 3), (8, 32, 3), (9, 128, 12)])
def test_texts_by_memory(gib: int, short: int | None, long: int) -> None:
    """The first entry applies whose length is enough for the model on a device with more memory than the entry's."""
    table = [TextLimit(512, 8, 128), TextLimit(512, 4, 32), TextLimit(8192, 8, 12), TextLimit(8192, 0, 3)]
    found = texts_by_memory(table[:2], gib * GIB, 512), texts_by_memory(table, gib * GIB, 513)
    assert found == (short, long)
    assert texts_by_memory(table, gib * GIB, 8193) is None


@pytest.mark.parametrize(("full_at", "tokens"), [(0, 1024), (3000, 2048), (4096, 4096), (9000, 8192)])
def test_batches_are_bound_by_launches_until_they_take_longer(full_at: int, tokens: int) -> None:
    """The largest measured size that takes no longer than smaller ones."""
    assert launch_bound(measure(device(full_at), PLENTY, 60.0), otherwise=7) == tokens
