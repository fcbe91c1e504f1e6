"""Memory returns to the system: of the heap, and of computed constants."""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from vectord.compute.memory import KEPT_BYTES, SEGMENT_BYTES, Scratch


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


# --- the heap ---

GROWTH = """
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
import psutil
from vectord.compute.memory import limit_freed_memory

def resident_mb():
    return psutil.Process().memory_info().rss >> 20

if sys.argv[1] == "limited":
    limit_freed_memory()
before_mb = resident_mb()
together = Barrier(6)

def allocate_and_free(_):
    bytes(30 * 2**20)  # glibc raises its limits when this is freed
    together.wait()
    small = [bytes(100_000) for _ in range(300)]
    together.wait()

with ThreadPoolExecutor(6) as threads:
    list(threads.map(allocate_and_free, range(6)))
    print(resident_mb() - before_mb)
"""
EXPECTED_MB = 6 * KEPT_BYTES // 2**20 + 12


@pytest.mark.skipif(not hasattr(ctypes.pythonapi, "mallopt"), reason="not glibc")
def test_freed_memory_returns_to_the_system() -> None:
    """Six threads that freed 30 MB each keep KEPT_BYTES each; more by default, or the limits could go."""
    limited_mb, default_mb = (
        int(subprocess.run([sys.executable, "-c", GROWTH, how], capture_output=True, check=True, text=True).stdout)
        for how in ("limited", "default")
    )
    assert limited_mb <= EXPECTED_MB < default_mb
