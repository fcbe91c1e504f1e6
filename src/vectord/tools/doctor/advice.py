"""Advice from facts: each with its reason and the setting to change. A pure function."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from vectord.config import Config
from vectord.tools.doctor.facts import Cache, Machine, Port
from vectord.tools.doctor.self_test import SelfTest

MIN_FREE_BYTES = 5 * 10**9


@dataclass(frozen=True, slots=True)
class Advice:
    level: Literal["problem", "hint"]  # a problem: serve fails, or is unusably slow
    reason: str
    setting: str  # the setting to change, or what else to do


def advice(
    machine: Machine,
    cache: Cache,
    ports: Sequence[Port],
    tested: Sequence[SelfTest],
    config: Config,
    installed: Sequence[str],
) -> list[Advice]:
    """installed: names of libraries. Problems come first."""
    on_cpu, device = any(one.device == "cpu" for one in tested), config.device.device
    problems = [
        (f"{one.model}: {one.problem}", "replace the model's files, or see the log of vectord serve")
        for one in tested
        if one.problem is not None
    ]
    if on_cpu and machine.bfloat16 is False and config.device.dtype == "bfloat16":
        problems.append(("this CPU has no bfloat16 instructions; without them it is 100 times slower", "--dtype auto"))
    if not machine.gpus and device.startswith("cuda") and device != "cuda-or-cpu":
        problems.append((f"device is {device}, but no GPU was found", "--device auto"))
    for port in ports:
        if port.problem is not None:
            option = f"--{port.setting.replace('_', '-')}"
            problem = f"{port.host} port {port.port} is not available ({port.problem})"
            problems.append((problem, f"choose another {option}, or stop the program that uses it"))
    hints = _hints(machine, cache, config, installed, on_cpu=on_cpu)
    return [Advice("problem", *one) for one in problems] + [Advice("hint", *one) for one in hints]


def _hints(
    machine: Machine, cache: Cache, config: Config, installed: Sequence[str], *, on_cpu: bool
) -> Iterator[tuple[str, str]]:
    threads = config.device.num_threads
    if machine.threads < machine.affinity:
        yield (
            f"the cgroup's CPU quota leaves {machine.threads} of {machine.affinity} cores; vectord uses as many "
            "threads, since more would be throttled",
            "raise the container's CPU limit (docker --cpus, Kubernetes limits.cpu) to use the other cores",
        )
    if threads is not None and threads < machine.threads:
        yield f"num_threads is {threads}, and {machine.threads} threads are available", "remove or raise --num-threads"
    if machine.threads >= 16 and config.server.front_ends <= 1:
        yield (
            f"{machine.threads} threads can compute small requests faster than one event loop parses their JSON",
            "--front-ends 2 or more, if `vectord bench` shows one core at its limit",
        )
    if on_cpu and machine.int8 and config.device.dtype == "auto":
        yield (
            "this CPU has int8 instructions, which may be faster, at a mean cosine of 0.999 to float32; measure both",
            "--dtype int8",
        )
    for gpu in machine.gpus[:1]:
        if "torch" not in installed:
            yield f"there is a {gpu.name}, but no torch", "install the extra torch (docs/gpu.md)"
        if config.device.device == "cpu":
            yield f"there is a {gpu.name}, but device is cpu", "--device cuda"
    limit, cache_bytes = machine.memory_limit_bytes or machine.memory_bytes, config.engine.cache_bytes
    if limit is not None and cache_bytes > limit // 4:
        yield (
            f"the cache of vectors may grow to {cache_bytes / 1e9:.1f} GB of {limit / 1e9:.1f} GB memory",
            f"--cache-bytes {limit // 10}",
        )
    if not cache.writable and not config.model.offline:
        yield f"{cache.folder} is not writable, so no model can be downloaded", "--hub-cache or --offline"
    if cache.free_bytes is not None and cache.free_bytes < MIN_FREE_BYTES and not config.model.offline:
        yield f"only {cache.free_bytes / 1e9:.1f} GB are free at {cache.folder}", "another --hub-cache"
    if not config.server.demands_key and config.server.host in ("0.0.0.0", "::"):  # noqa: S104
        yield "anyone who reaches this machine can use the server", "--api-key, or --host 127.0.0.1"
