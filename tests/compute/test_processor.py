"""The thread budget follows affinity and cgroup quota; bfloat16 needs the processor's flags."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from vectord.compute.processor import multiplies_bfloat16, multiplies_int8, prepare_process, thread_budget

V1 = "4:memory:/elsewhere\n2:cpu,cpuacct:/docker/one\n0::/\n"
V2 = "0::/kubepods/pod/container\n"
HYBRID = "3:cpuset:/\n0::/user\n"


LOWERED = """
import asyncio, json, os, threading, time
import uvloop
from vectord.compute.processor import lower_other_threads
other = threading.Thread(target=time.sleep, args=(30,), daemon=True)
other.start()
async def found():
    parsing = await asyncio.to_thread(threading.get_native_id)
    lower_other_threads()
    return [os.getpriority(os.PRIO_PROCESS, each) for each in (threading.get_native_id(), parsing, other.native_id)]
print(json.dumps([asyncio.run(found()), uvloop.run(found())]))
"""


def write_tree(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def eight_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


QUOTAS = {
    "no cgroups": ({}, 8),
    "version 2": ({"proc/self/cgroup": V2, "sys/fs/cgroup/kubepods/pod/container/cpu.max": "300000 100000\n"}, 3),
    "rounded down": ({"proc/self/cgroup": V2, "sys/fs/cgroup/kubepods/pod/container/cpu.max": "399999 100000"}, 3),
    "less than one": ({"proc/self/cgroup": V2, "sys/fs/cgroup/kubepods/pod/container/cpu.max": "50000 100000"}, 1),
    "limit of the pod": (
        {
            "proc/self/cgroup": V2,
            "sys/fs/cgroup/kubepods/pod/container/cpu.max": "max 100000",
            "sys/fs/cgroup/kubepods/pod/cpu.max": "400000 100000",
        },
        4,
    ),
    "namespace of a container": ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "250000 100000"}, 2),
    "version 2 beside version 1": ({"proc/self/cgroup": HYBRID, "sys/fs/cgroup/unified/user/cpu.max": "5 1"}, 5),
    "version 1": (
        {
            "proc/self/cgroup": V1,
            "sys/fs/cgroup/cpu,cpuacct/docker/one/cpu.cfs_quota_us": "600000\n",
            "sys/fs/cgroup/cpu,cpuacct/docker/one/cpu.cfs_period_us": "100000\n",
        },
        6,
    ),
    "version 1 mounted in a container": (
        {
            "proc/self/cgroup": V1,
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
        2,
    ),
    "nonsense": ({"proc/self/cgroup": "0::/\nnonsense", "sys/fs/cgroup/cpu.max": "lots"}, 8),
}


@pytest.mark.parametrize("case", QUOTAS)
@pytest.mark.usefixtures("eight_processors")
def test_the_budget_follows_the_quota(tmp_path: Path, case: str) -> None:
    """The tightest limit from our group to the root counts, rounded down, at least one."""
    files, threads = QUOTAS[case]
    assert thread_budget(write_tree(tmp_path, files)) == threads


def test_the_budget_is_at_most_the_affinity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process pinned to two processors gets two threads for any quota."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 7}, raising=False)
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "600000 100000"}
    assert thread_budget(write_tree(tmp_path, files)) == 2


def test_the_budget_without_affinity_counts_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS and Windows have no affinity masks."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert thread_budget(tmp_path) == 5
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert thread_budget(tmp_path) == 1


@pytest.mark.parametrize(
    ("cpuinfo", "answer"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx512f avx512_bf16 sse\n", True),
        ("processor\t: 0\nflags\t\t: fpu avx2 avx512f\n", False),
        ("processor\t: 0\nFeatures\t: fp asimd bf16\n", False),
        (None, None),
    ],
    ids=["AVX-512", "without", "Arm", "no cpuinfo"],
)
def test_bfloat16_follows_the_processors_flags(tmp_path: Path, cpuinfo: str | None, answer: bool | None) -> None:
    """Only x86's instructions count: the runtime uses float16 on Arm. None: the system does not report them."""
    assert multiplies_bfloat16(write_tree(tmp_path, {"proc/cpuinfo": cpuinfo} if cpuinfo else {})) is answer


@pytest.mark.parametrize(
    ("flags", "answer"),
    [
        ("avx2 avx_vnni", True),
        ("asimd asimddp", True),
        ("avx2", False),
    ],
)
def test_int8_follows_the_processors_flags(tmp_path: Path, flags: str, answer: bool) -> None:
    """Without sums of int8 products it is no faster than float32, and overflows."""
    assert multiplies_int8(write_tree(tmp_path, {"proc/cpuinfo": f"flags\t: fpu {flags} sse2\n"})) is answer
    assert multiplies_int8(tmp_path / "nowhere") is None


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux only")
def test_other_threads_yield_to_the_calling_one() -> None:
    """The loop's thread keeps its priority, and so do the threads that parse for it; a second call changes nothing.

    A thread of low priority that holds the interpreter's lock delays the event loop by as much as other processes delay
    it: on a loaded machine, the parser of a million ids stopped the server for 4 s.
    """
    printed = subprocess.run([sys.executable, "-c", LOWERED], capture_output=True, check=True, text=True).stdout
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert json.loads(printed) == [[own, own, min(19, own + 10)]] * 2


def test_threads_wait_briefly_for_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the event loop waits 5 ms for each thread that parses or tokenizes; on Linux no thread preempts another."""
    seen: list[object] = []
    monkeypatch.setattr(sys, "setswitchinterval", seen.append)
    monkeypatch.setattr(os, "sched_setscheduler", lambda *arguments: seen.append(arguments[1]), raising=False)
    prepare_process()
    assert seen == [0.0005, *([os.SCHED_BATCH] if hasattr(os, "SCHED_BATCH") else [])]
