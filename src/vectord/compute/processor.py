"""What this machine's processor offers this process. Read once when a backend loads; opens nothing but small files.

Called by the backends that run on the processor and by compose, which sizes its thread pools by it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

# Where the processor controller may be mounted: cgroup version 2 alone or beside version 1, and version 1.
_MOUNTS_V2 = ("sys/fs/cgroup", "sys/fs/cgroup/unified")
_MOUNTS_V1 = ("sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct")
# Instructions that multiply bfloat16. Without them it is emulated, a hundred times slower than float32.
_BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16"}
# Instructions that multiply int8 and add up in 32 bits. Without them int8 is no faster than float32, and two products
# are added up in 16 bits, which overflow.
_INT8_FLAGS = {"avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"}


def thread_budget(root: Path = Path("/")) -> int:
    """Threads that can run at once: the smaller of affinity and cgroup quota, rounded down, at least 1.

    Rounded down because a thread more than the quota pays for is stopped by the kernel in mid-batch, and its whole
    stream with it. root: where /proc and /sys are.
    """
    return max(1, min([_affinity(), *(int(quota) for quota in _quotas(root))]))


def multiplies_bfloat16(root: Path = Path("/")) -> bool | None:
    """Whether the processor has instructions for bfloat16 products; None where the system does not say."""
    flags = _flags(root)
    return None if flags is None else not _BFLOAT16_FLAGS.isdisjoint(flags)


def multiplies_int8(root: Path = Path("/")) -> bool | None:
    """Whether it has instructions for sums of int8 products; None where the system does not say."""
    flags = _flags(root)
    return None if flags is None else not _INT8_FLAGS.isdisjoint(flags)


def _flags(root: Path) -> list[str] | None:
    for line in _read(root / "proc/cpuinfo").splitlines():
        name, _, flags = line.partition(":")
        if name.strip() in {"flags", "Features"}:  # x86, Arm; every processor repeats them
            return flags.split()
    return None


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas(root: Path) -> Iterator[float]:
    """Processors that this process's cgroup and each one around it may use, for those with a limit."""
    lines = _read(root / "proc/self/cgroup").splitlines()  # "hierarchy:controllers:path"
    for controllers, path in (line.split(":", 2)[1:] for line in lines if line.count(":") >= 2):
        if controllers and "cpu" not in controllers.split(","):
            continue
        group = Path(path.lstrip("/"))
        for mount in _MOUNTS_V1 if controllers else _MOUNTS_V2:
            # In a container the named path may not exist there: the mount itself is then the container's own group.
            for folder in (group, *group.parents):
                yield from _quota(root / mount / folder)


def _quota(folder: Path) -> Iterator[float]:
    quota, _, period = _read(folder / "cpu.max").partition(" ")  # version 2: "150000 100000" or "max 100000"
    if not period:
        quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")  # version 1, or -1
    if quota.isdigit() and period.isdigit() and int(period):
        yield int(quota) / int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:
        return ""
