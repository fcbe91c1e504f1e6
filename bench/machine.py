"""The conditions of a measurement: machine, code, versions, and the load before it."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from bench.child import REPOSITORY
from vectord.compute.processor import thread_budget

MATRIX_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "bf16", "i8mm")


def conditions() -> dict[str, str]:
    """One line for each, above the table."""
    name, flags = _processor()
    return {
        "date": time.strftime("%Y-%m-%d %H:%M %Z"),
        "commit": _commit(),
        "processor": f"{name}, {thread_budget()} cores, {' '.join(flags)}",
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "libraries": ", ".join(f"{name} {_version(name)}" for name in ("openvino", "tokenizers", "torch")),
        "busy before": f"load average {os.getloadavg()[0]:.2f}",
    }


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "absent"


def _processor() -> tuple[str, list[str]]:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.processor() or platform.machine(), []
    pairs = (line.partition(":") for line in cpuinfo.read_text().splitlines())
    facts = {key.strip(): value.strip() for key, _, value in pairs}
    flags = (facts.get("flags") or facts.get("Features") or "").split()
    return facts.get("model name", platform.machine()), [flag for flag in MATRIX_FLAGS if flag in flags]


def _commit() -> str:
    git = ["git", "-C", str(REPOSITORY)]
    try:
        commit = subprocess.run([*git, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=True)
        status = [*git, "status", "--porcelain", "--", ".", ":!bench/results", ":!docs/performance.svg"]
        changes = subprocess.run(status, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit.stdout.strip() + (" with uncommitted changes" if changes.stdout else "")
