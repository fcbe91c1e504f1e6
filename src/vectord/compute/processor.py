"""The processors and instructions available to this process, and its threads' priorities.

Called by the CPU backends, at the start of a process, by compose for the sizes of its thread pools, and every second
for the priorities.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from vectord.compute.memory import limit_freed_memory

# Possible mounts of a cgroup's controllers: version 2 alone or next to version 1, and version 1.
_MOUNTS_V2 = ("sys/fs/cgroup", "sys/fs/cgroup/unified")
_MOUNTS_V1 = {"cpu": ("sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"), "memory": ("sys/fs/cgroup/memory",)}
# Instructions that multiply bfloat16. Without them it is emulated, a hundred times slower than float32.
_BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16"}
# Instructions that multiply int8 and sum in 32 bits. Without them int8 is no faster than float32.
_INT8_FLAGS = {"avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"}

SWITCH_INTERVAL_S = 0.0005
BACKGROUND_NICE = 10  # of the threads that compute
# Prefixes of the names of the event loop's executor. Its threads parse and render, and hold the interpreter's lock
# meanwhile: at a low priority they hold it for longer, and the event loop waits.
PARSING_THREADS = ("asyncio_", "uvloop_")


def prepare_process() -> None:
    """Set the limits of the heap, and how threads share the cores. Called before other threads start.

    Threads wait 0.5 ms for the interpreter instead of 5: the event loop waits for it after each system call, in turn
    with the threads that parse and tokenize. On Linux, a thread that wakes preempts no other (SCHED_BATCH): every
    answer wakes the event loop, which would take a core from a running forward.
    """
    limit_freed_memory()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):  # a sandbox may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # later threads inherit it


def thread_budget(root: Path = Path("/")) -> int:
    """Return the threads that can run at once: the smaller of affinity and cgroup quota, at least 1. Rounded down: the
    kernel stops a thread beyond the quota in mid-batch. root: the folder of /proc and /sys."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in cgroup_folders(root, "cpu"):
        quota, _, period = read_small(folder / "cpu.max").partition(" ")  # version 2: "150000 100000" or "max 100000"
        if not period:  # version 1, or -1
            quota, period = read_small(folder / "cpu.cfs_quota_us"), read_small(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            available = min(available, int(quota) // int(period))
    return max(1, available)


def multiplies_bfloat16(root: Path = Path("/")) -> bool | None:
    """Return whether the processor has instructions for bfloat16 products; None if the system does not report it."""
    flags = _flags(root)
    return None if flags is None else not _BFLOAT16_FLAGS.isdisjoint(flags)


def multiplies_int8(root: Path = Path("/")) -> bool | None:
    """Return whether it has instructions for sums of int8 products; None if the system does not report it."""
    flags = _flags(root)
    return None if flags is None else not _INT8_FLAGS.isdisjoint(flags)


def lower_other_threads() -> None:
    """Give the calling thread, the event loop's, and those that parse for it more of a busy core than other threads.

    Linux gives priorities to threads. Called every second, because libraries start threads of their own at any time.
    """
    if sys.platform != "linux":
        return
    calling = threading.get_native_id()
    with suppress(OSError):  # a sandbox
        nice = min(19, os.getpriority(os.PRIO_PROCESS, calling) + BACKGROUND_NICE)
        parsing = {thread.native_id for thread in threading.enumerate() if thread.name.startswith(PARSING_THREADS)}
        for thread in Path("/proc/self/task").iterdir():
            if int(thread.name) not in {calling, *parsing}:
                with suppress(OSError):  # it has just ended
                    os.setpriority(os.PRIO_PROCESS, int(thread.name), nice)


def cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """The possible folders of this process's cgroup and each enclosing one. controller: cpu or memory."""
    lines = read_small(root / "proc/self/cgroup").splitlines()  # "hierarchy:controllers:path"
    for controllers, path in (line.split(":", 2)[1:] for line in lines if line.count(":") >= 2):
        if controllers and controller not in controllers.split(","):
            continue
        group = Path(path.lstrip("/"))
        for mount in _MOUNTS_V1[controller] if controllers else _MOUNTS_V2:
            # In a container the named path may be missing there: the mount itself is then the container's own group.
            yield from (root / mount / folder for folder in (group, *group.parents))


def read_small(path: Path) -> str:
    """The text of a file of the system; empty if it cannot be read."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _flags(root: Path) -> list[str] | None:
    for line in read_small(root / "proc/cpuinfo").splitlines():
        name, _, flags = line.partition(":")
        if name.strip() in {"flags", "Features"}:  # x86, Arm; every processor repeats them
            return flags.split()
    return None
