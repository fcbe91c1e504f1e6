"""The heap returns freed memory."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from vectord.compute.heap import KEPT_BYTES

GROWTH = """
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
import psutil
from vectord.compute import heap

def resident_mb():
    return psutil.Process().memory_info().rss >> 20

if sys.argv[1] == "limited":
    heap.limit_freed_memory()
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


OUTGROWN = """
import psutil
from vectord.compute import heap

heap.limit_freed_memory()
kept = []
buffers = []
for _ in range(30):
    buffers.append(b"x" * 2**20)
    kept.append(bytes(1000))  # in the heap after the buffer, so that the heap's end does not move back
before_mb = psutil.Process().memory_info().rss >> 20
buffers.clear()
print(before_mb - (psutil.Process().memory_info().rss >> 20))
"""


@pytest.mark.skipif(not hasattr(ctypes.pythonapi, "mallopt"), reason="not glibc")
def test_large_buffers_return_between_small_ones() -> None:
    """A runtime that replaces its buffers by larger ones leaves no holes of 1 MiB in the heap."""
    run = subprocess.run([sys.executable, "-c", OUTGROWN], capture_output=True, check=True, text=True)
    assert int(run.stdout) >= 29
