"""Facts about a machine, and the advice that follows from facts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vectord.config import Config, DeviceConfig
from vectord.tools.doctor.advice import advice
from vectord.tools.doctor.facts import Cache, GpuFacts, Machine, Port, read_machine
from vectord.tools.doctor.self_test import SelfTest

MACHINE = Machine(
    system="Linux",
    processor="a processor",
    features=("avx2",),
    bfloat16=False,
    int8=False,
    cores=4,
    affinity=4,
    threads=4,
    memory_bytes=64 * 10**9,
    memory_limit_bytes=None,
    memory_available_bytes=60 * 10**9,
    gpus=(),
)
CACHE = Cache(folder="/cache", exists=True, writable=True, free_bytes=10**12)
TESTED = SelfTest(
    model="m",
    state="ready",
    backend="openvino",
    device="cpu",
    dtype="float32",
    outputs=("dense",),
    dimensions=384,
    max_input_tokens=256,
    lone_ms=1.0,
    texts_per_s=100.0,
    references=(),
    problem=None,
)


def test_facts_come_from_proc_and_sys(tmp_path: Path) -> None:
    """CPU, instructions, and the CPU quota and memory limit of a container."""
    for name, text in {
        "proc/cpuinfo": "model name : Some CPU\nflags : avx2 avx512f avx512_vnni sse\n",
        "proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 500 kB\n",
        "proc/self/cgroup": "0::/box\n",
        "sys/fs/cgroup/box/memory.max": "4096\n",
        "sys/fs/cgroup/memory.max": "max\n",
        "sys/fs/cgroup/box/cpu.max": "100000 100000\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = read_machine(tmp_path)
    assert (found.processor, found.features) == ("Some CPU", ("avx2", "avx512f", "avx512_vnni"))
    assert (found.bfloat16, found.int8, found.threads) == (False, True, 1)
    assert (found.memory_bytes, found.memory_limit_bytes, found.memory_available_bytes) == (1024000, 4096, 512000)


# --- advice ---------------------------------------------------------------------------------------------------


def advised(**changed: Any) -> list[str]:
    facts: dict[str, Any] = {
        "machine": MACHINE,
        "cache": CACHE,
        "ports": [],
        "tested": [TESTED],
        "config": Config(),
        "installed": ["torch"],
    }
    return [f"{one.level}: {one.setting}" for one in advice(**(facts | changed))]


GPU = GpuFacts(name="a GPU", driver="1", memory_mib=80_000)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"machine": replace(MACHINE, threads=2)}, "hint: raise the container's CPU limit"),
        ({"machine": replace(MACHINE, int8=True)}, "hint: --dtype int8"),
        ({"machine": replace(MACHINE, threads=32, affinity=32)}, "hint: --front-ends 2"),
        ({"machine": replace(MACHINE, gpus=(GPU,)), "installed": []}, "hint: install the extra torch"),
        ({"config": Config(device=DeviceConfig(device="cuda"))}, "problem: --device auto"),
        ({"config": Config(device=DeviceConfig(dtype="bfloat16"))}, "problem: --dtype auto"),
        ({"config": Config(device=DeviceConfig(num_threads=2))}, "hint: remove or raise --num-threads"),
        ({"machine": replace(MACHINE, memory_limit_bytes=10**8)}, "hint: --cache-bytes 10000000"),
        ({"cache": replace(CACHE, writable=False)}, "hint: --hub-cache or --offline"),
        ({"cache": replace(CACHE, free_bytes=10**9)}, "hint: another --hub-cache"),
        ({"ports": [Port(setting="port", host="h", port=1, problem="taken")]}, "problem: choose another --port"),
        (
            {"tested": [replace(TESTED, problem="no")]},
            "problem: replace the model's files, or see the log of vectord serve",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_fact_has_its_advice(changed: dict[str, Any], expected: str) -> None:
    """It names the setting to change. Without a problem there is no advice."""
    assert advised() == []
    (found,) = advised(**changed)
    assert found.startswith(expected)
