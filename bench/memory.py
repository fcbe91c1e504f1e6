"""The memory bandwidth and the last-level cache of this machine, as parts of a model."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

ARRAY_BYTES = 256_000_000  # at least; all threads together
ARRAY_CACHES = 8  # or so many last-level caches
COPIES = 4  # in a round
ROUNDS = 3
UNITS = {"K": 2**10, "M": 2**20}


def bytes_per_s(threads: int, cache_bytes: int) -> float:
    """Bytes that copies of large arrays read and write a second, in the best of several rounds.

    Each thread allocates its own arrays, so that they lie near its core.
    """
    size = max(ARRAY_BYTES, ARRAY_CACHES * cache_bytes) // threads
    barrier = threading.Barrier(threads)

    def copy(_: int) -> list[float]:
        source = np.ones(size, np.uint8)
        target = source.copy()
        elapsed_s = []
        for _ in range(ROUNDS):
            barrier.wait()
            start = time.perf_counter()
            for _ in range(COPIES):
                np.copyto(target, source)
            elapsed_s.append(time.perf_counter() - start)
        return elapsed_s

    with ThreadPoolExecutor(threads) as pool:
        rounds = zip(*pool.map(copy, range(threads)), strict=True)
    best_s: float = min(max(elapsed_s) for elapsed_s in rounds)
    return 2 * size * COPIES * threads / best_s


def last_level_cache_bytes(cores: Sequence[int], root: Path = Path("/sys/devices/system/cpu")) -> int:
    """The sum of the last-level caches of these cores; 0 if the system does not report them."""
    caches = {}
    for core in cores:
        levels = [(int((folder / "level").read_text()), folder) for folder in root.glob(f"cpu{core}/cache/index*")]
        if levels:
            folder = max(levels)[1]
            size = (folder / "size").read_text().strip()
            caches[(folder / "shared_cpu_list").read_text()] = int(size[:-1]) * UNITS[size[-1]]
    return sum(caches.values())
