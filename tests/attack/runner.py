"""Runs one attack: `run(attack, target, ...)` returns what it tried and whether the server held.

             ┌─ the attack, on this process's event loop
before ──────┼─ the witness (witness.py), a process of its own ─────── after
             └─ the server's resident memory, every 0.2 s

Before the attack, the witness sends the same probes: their times show what the machine's other load does to them.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np
import psutil
from tests.attack.target import Attempt, Target
from tests.attack.witness import Witnessed

Attack = Callable[[Target, Attempt], Awaitable[None]]

LOOK_S = 0.2
SETTLE_S = 30.0  # after an attack, until memory must be below its limit
GRACE_S = 60.0  # an attack that does not end by then has failed
SHOWN_OUTCOMES = 4


@dataclass(frozen=True, slots=True)
class Limits:
    memory_bytes: int = 400 * 2**20  # above the server before the attack, once the clients have gone
    probe_p99_ms: float = float("inf")
    control_s: float = 0.2  # how long the witness probes before the attack


@dataclass(slots=True)
class Result:
    name: str
    attempt: Attempt
    witnessed: Witnessed
    memory_bytes: tuple[int, int, int] = (0, 0, 0)  # before, most, after
    control_ms: tuple[float, ...] = ()  # of probes before the attack

    def failures(self, limits: Limits) -> list[str]:
        """Empty if the server held."""
        found = list(self.attempt.faults)
        if self.witnessed.wrong:
            found.append(f"{self.witnessed.wrong} wrong vectors")
        if self.witnessed.lost:
            found.append(f"{len(self.witnessed.lost)} lost answers ({self.witnessed.lost[0]})")
        if self.memory_bytes[2] - self.memory_bytes[0] > limits.memory_bytes:
            found.append(f"memory grew by {(self.memory_bytes[2] - self.memory_bytes[0]) / 2**20:.0f} MiB")
        if self.witnessed.probes_ms and self.probe_ms(99) > limits.probe_p99_ms:
            found.append(f"probes took {self.probe_ms(99):.0f} ms at p99")
        return found

    def probe_ms(self, percentile: float) -> float:
        return float(np.percentile(self.witnessed.probes_ms or [0.0], percentile))

    def answer_ms(self, percentile: float) -> float:
        return float(np.percentile(self.witnessed.answers_ms or [0.0], percentile))


async def run(attack: Attack, target: Target, seconds: float, connections: int, limits: Limits) -> Result:
    """Raises LookupError if the server is not on this machine."""
    processes = target.processes()
    attempt = Attempt(seconds, connections)
    result = Result(attack.__name__, attempt, Witnessed())
    command = [sys.executable, "-m", "tests.attack.witness", target.url, target.witness_key]
    witness = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert witness.stdin is not None and witness.stdout is not None
    if await witness.stdout.readline() != b"ready\n":
        attempt.fault("the server did not answer before the attack")
        return result
    await asyncio.sleep(limits.control_s)
    before = most = resident_bytes(processes)
    attempt.began_s = asyncio.get_running_loop().time()
    attacking = asyncio.create_task(_bounded(attack, target, attempt))
    while not (await asyncio.wait([attacking], timeout=LOOK_S))[0]:
        most = max(most, resident_bytes(processes))
    attacking.result()
    counts, _ = await witness.communicate(b"")
    result.witnessed = Witnessed(**json.loads(counts)) if counts else Witnessed(lost=["the witness failed"])
    result.control_ms = result.witnessed.take_probes_before(attempt.began_s)
    after = await _settled_bytes(processes, before + limits.memory_bytes)
    result.memory_bytes = (before, max(most, after), after)
    if not all(process.is_running() for process in processes[:1]):
        attempt.fault("the server's process has ended")
    return result


async def _bounded(attack: Attack, target: Target, attempt: Attempt) -> None:
    try:
        async with asyncio.timeout(attempt.seconds + GRACE_S):
            await attack(target, attempt)
    except TimeoutError:
        attempt.fault("the attack was still waiting for an answer long after its time")


async def _settled_bytes(processes: list[psutil.Process], limit_bytes: int) -> int:
    """The memory once it is below the limit, or after SETTLE_S."""
    deadline_s = asyncio.get_running_loop().time() + SETTLE_S
    while (size := resident_bytes(processes)) > limit_bytes and asyncio.get_running_loop().time() < deadline_s:
        await asyncio.sleep(LOOK_S)
    return size


def resident_bytes(processes: list[psutil.Process]) -> int:
    total = 0
    for process in processes:
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


HEADER = (
    "attack",
    "tried",
    "outcomes",
    "probe p50/p99/max ms",
    "before p50/max",
    "answer p50/p99 ms",
    "refused",
    "memory MB",
    "held",
)


def row(result: Result, limits: Limits) -> tuple[str, ...]:
    """One line of the table, under HEADER."""
    attempt, witnessed = result.attempt, result.witnessed
    if attempt.skipped:
        return (result.name, "0", f"skipped: {attempt.skipped}", "", "", "", "", "", "-")
    common = ", ".join(f"{name}: {count:,}" for name, count in attempt.outcomes.most_common(SHOWN_OUTCOMES))
    failures = result.failures(limits)
    return (
        result.name,
        f"{attempt.tried:,}",
        common,
        "/".join(f"{result.probe_ms(percentile):.0f}" for percentile in (50, 99, 100)),
        "/".join(f"{np.percentile(result.control_ms or [0.0], percentile):.0f}" for percentile in (50, 100)),
        "/".join(f"{result.answer_ms(percentile):.0f}" for percentile in (50, 99)),
        f"{witnessed.refused}",
        "/".join(f"{size / 2**20:.0f}" for size in result.memory_bytes),
        "no: " + "; ".join(failures) if failures else "yes",
    )
