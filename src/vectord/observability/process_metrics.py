"""process_*: the families that every client library of Prometheus has, from Linux's /proc; absent on other systems."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from mmap import PAGESIZE
from pathlib import Path

from vectord.observability.instruments import Counter, Gauge, Histogram, MetricFamilies

_STATM = Path("/proc/self/statm")
_STAT = Path("/proc/self/stat")
_DESCRIPTORS = Path("/proc/self/fd")
_HAS_PROC = _STATM.exists()


class ProcessMetrics(MetricFamilies):
    def __init__(self) -> None:
        self.virtual_bytes = Gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.")
        self.resident_bytes = Gauge("process_resident_memory_bytes", "Resident memory size in bytes.")
        self.started = Gauge("process_start_time_seconds", "Start time of the process since unix epoch in seconds.")
        self.cpu_seconds = Counter("process_cpu_seconds", "Total user and system CPU time spent in seconds.")
        self.open_descriptors = Gauge("process_open_fds", "Number of open file descriptors.")
        self.max_descriptors = Gauge("process_max_fds", "Maximum number of open file descriptors.")
        if _HAS_PROC:
            ticks_after_boot = int(_STAT.read_text("ascii", "replace").rpartition(")")[2].split()[19])
            age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks_after_boot / os.sysconf("SC_CLK_TCK")
            self.started.set(time.time() - age_s)

    def instruments(self) -> Sequence[Counter | Histogram]:
        return super().instruments() if _HAS_PROC else ()

    def read(self) -> None:
        if not _HAS_PROC:
            return
        import resource  # noqa: PLC0415 - not on Windows

        virtual, resident = memory_bytes() or (0, 0)
        self.virtual_bytes.set(virtual)
        self.resident_bytes.set(resident)
        self.cpu_seconds.values[()] = time.process_time()
        # Since Linux 6.2 the folder's size is their number; reading the folder takes milliseconds for thousands.
        self.open_descriptors.set(_DESCRIPTORS.stat().st_size or len(list(_DESCRIPTORS.iterdir())))
        self.max_descriptors.set(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def memory_bytes() -> tuple[int, int] | None:
    """The process's virtual and resident memory; None if the system does not report it."""
    try:
        virtual, resident, *_ = _STATM.read_text("ascii").split()
    except OSError:
        return None
    return int(virtual) * PAGESIZE, int(resident) * PAGESIZE
