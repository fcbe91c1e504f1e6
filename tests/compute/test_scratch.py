"""Tests of compute/scratch.py."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from vectord.compute.scratch import SEGMENT_BYTES, Scratch


@pytest.fixture
def scratch() -> Iterator[Scratch]:
    yield Scratch()


def test_arrays_keep_their_numbers_when_pages_are_released(scratch: Scratch) -> None:
    """Each array is apart from the others, also in a new part of the file."""
    arrays = [scratch.array((3, 5), np.float32), scratch.array((SEGMENT_BYTES,), np.uint8), scratch.array((7,), "u2")]
    for i, array in enumerate(arrays, 1):
        array[:] = i
    scratch.release()
    for i, array in enumerate(arrays, 1):
        assert (array == i).all()


def test_released_pages_take_no_memory_of_the_process(scratch: Scratch) -> None:
    """They are those of a file, and no name of it is left."""
    array = scratch.array((2**24,), np.uint8)
    array[:] = 1
    before = resident_bytes()
    scratch.release()
    assert before - resident_bytes() > array.nbytes // 2


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_without_room_arrays_are_in_memory(
    scratch: Scratch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A write beyond the disk's end would end the process, so the room is reserved first. The log says it once."""

    def full(descriptor: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with caplog.at_level(logging.WARNING):
        arrays = [scratch.array((4,), np.float32) for _ in range(2)]
    for array in arrays:
        array[:] = 1
    scratch.release()
    assert all((array == 1).all() for array in arrays)
    assert [record.getMessage().partition(" has ")[2] for record in caplog.records] == [
        "no room for 16 bytes of weights (No space left on device): they stay in memory"
    ]
