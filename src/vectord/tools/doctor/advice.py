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
    found = [
        *_models(tested),
        *_threads(machine, config),
        *_dtypes(machine, config, tested),
        *_gpus(machine, config, installed),
        *_memory(machine, cache, config),
        *_network(ports, config),
    ]
    return sorted(found, key=lambda one: one.level != "problem")


def _models(tested: Sequence[SelfTest]) -> Iterator[Advice]:
    for one in tested:
        if one.problem is not None:
            yield Advice(
                "problem", f"{one.model}: {one.problem}", "replace the model's files, or see the log of vectord serve"
            )


def _threads(machine: Machine, config: Config) -> Iterator[Advice]:
    if machine.threads < machine.affinity:
        yield Advice(
            "hint",
            f"the cgroup's CPU quota leaves {machine.threads} of {machine.affinity} cores; vectord uses as many "
            "threads, since more would be throttled",
            "raise the container's CPU limit (docker --cpus, Kubernetes limits.cpu) to use the other cores",
        )
    if config.device.num_threads is not None and config.device.num_threads < machine.threads:
        yield Advice(
            "hint",
            f"num_threads is {config.device.num_threads}, and {machine.threads} threads are available",
            "remove or raise --num-threads",
        )
    if machine.threads >= 16 and config.server.front_ends <= 1:
        yield Advice(
            "hint",
            f"{machine.threads} threads can compute small requests faster than one event loop parses their JSON",
            "--front-ends 2 or more, if `vectord bench` shows one core at its limit",
        )


def _dtypes(machine: Machine, config: Config, tested: Sequence[SelfTest]) -> Iterator[Advice]:
    if not any(one.device == "cpu" for one in tested):
        return
    if machine.int8 and config.device.dtype == "auto":
        yield Advice(
            "hint",
            "this CPU has int8 instructions, which may be faster, at a mean cosine of 0.999 to float32; measure both",
            "--dtype int8",
        )
    if machine.bfloat16 is False and config.device.dtype == "bfloat16":
        yield Advice(
            "problem", "this CPU has no bfloat16 instructions; without them it is 100 times slower", "--dtype auto"
        )


def _gpus(machine: Machine, config: Config, installed: Sequence[str]) -> Iterator[Advice]:
    if machine.gpus and "torch" not in installed:
        yield Advice(
            "hint", f"there is a {machine.gpus[0].name}, but no torch", "install the extra torch (docs/gpu.md)"
        )
    if machine.gpus and config.device.device == "cpu":
        yield Advice("hint", f"there is a {machine.gpus[0].name}, but device is cpu", "--device cuda")
    if not machine.gpus and config.device.device.startswith("cuda") and config.device.device != "cuda-or-cpu":
        yield Advice("problem", f"device is {config.device.device}, but no GPU was found", "--device auto")


def _memory(machine: Machine, cache: Cache, config: Config) -> Iterator[Advice]:
    limit = machine.memory_limit_bytes or machine.memory_bytes
    if limit is not None and config.engine.cache_bytes > limit // 4:
        yield Advice(
            "hint",
            f"the cache of vectors may grow to {config.engine.cache_bytes / 1e9:.1f} GB of {limit / 1e9:.1f} GB memory",
            f"--cache-bytes {limit // 10}",
        )
    if config.model.offline:
        return
    if not cache.writable:
        yield Advice(
            "hint", f"{cache.folder} is not writable, so no model can be downloaded", "--hub-cache or --offline"
        )
    if cache.free_bytes is not None and cache.free_bytes < MIN_FREE_BYTES:
        yield Advice("hint", f"only {cache.free_bytes / 1e9:.1f} GB are free at {cache.folder}", "another --hub-cache")


def _network(ports: Sequence[Port], config: Config) -> Iterator[Advice]:
    for port in ports:
        if port.problem is not None:
            yield Advice(
                "problem",
                f"{port.host} port {port.port} is not available ({port.problem})",
                f"choose another --{port.setting.replace('_', '-')}, or stop the program that uses it",
            )
    if not config.server.demands_key and config.server.host in ("0.0.0.0", "::"):  # noqa: S104
        yield Advice("hint", "anyone who reaches this machine can use the server", "--api-key, or --host 127.0.0.1")
