"""Conclusions from facts, each with its reason and the setting that it is about. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from vectord.config import Config
from vectord.tools.doctor.installation import Cache, Port
from vectord.tools.doctor.machine import Machine
from vectord.tools.doctor.self_test import SelfTest

LEAST_FREE_BYTES = 5 * 10**9


@dataclass(frozen=True, slots=True)
class Advice:
    level: Literal["problem", "hint"]  # a problem: serve would fail, or nearly so
    reason: str
    setting: str  # what to say, or to do


def advice(
    machine: Machine,
    cache: Cache,
    ports: Sequence[Port],
    tested: Sequence[SelfTest],
    config: Config,
    installed: Sequence[str],
) -> list[Advice]:
    """installed: names of libraries. Problems first."""
    found = [
        *_models(tested),
        *_threads(machine, config),
        *_numbers(machine, config, tested),
        *_gpus(machine, config, installed),
        *_memory(machine, config),
        *_places(cache, ports, config),
    ]
    return sorted(found, key=lambda one: one.level != "problem")


def _models(tested: Sequence[SelfTest]) -> Iterator[Advice]:
    for one in tested:
        if one.problem is not None:
            yield Advice("problem", f"{one.model}: {one.problem}", "vectord serve --log-level debug says more")


def _threads(machine: Machine, config: Config) -> Iterator[Advice]:
    if machine.threads < machine.affinity:
        yield Advice(
            "hint",
            f"a cgroup's quota leaves {machine.threads} of {machine.affinity} cores; more threads would be stopped "
            "in mid-batch, so vectord uses that many",
            "raise the container's CPU limit (docker --cpus, Kubernetes limits.cpu) to use the others",
        )
    if config.device.num_threads is not None and config.device.num_threads < machine.threads:
        yield Advice(
            "hint",
            f"{config.device.num_threads} threads are set, and this process may use {machine.threads}",
            "leave out --num-threads, or raise it",
        )
    if machine.threads >= 16 and config.server.front_ends <= 1:
        yield Advice(
            "hint",
            f"{machine.threads} threads compute faster than one event loop may read and write JSON of small requests",
            "--front-ends 2 or more, where `vectord bench` shows a core at its limit",
        )


def _numbers(machine: Machine, config: Config, tested: Sequence[SelfTest]) -> Iterator[Advice]:
    on_processor = any(one.device == "cpu" for one in tested)
    if on_processor and machine.int8 and config.device.dtype == "auto":
        yield Advice(
            "hint",
            "this processor multiplies int8, which may be faster; vectors keep a mean cosine of 0.995; measure both",
            "--dtype int8",
        )
    if on_processor and machine.bfloat16 is False and config.device.dtype == "bfloat16":
        yield Advice(
            "problem",
            "this processor has no instructions for bfloat16, which is then a hundred times slower than float32",
            "--dtype auto",
        )


def _gpus(machine: Machine, config: Config, installed: Sequence[str]) -> Iterator[Advice]:
    if machine.gpus and "torch" not in installed:
        yield Advice("hint", f"{machine.gpus[0].name} is here, and torch is not", "pip install 'vectord[torch]'")
    if machine.gpus and config.device.device == "cpu":
        yield Advice("hint", f"{machine.gpus[0].name} is here, and the processor is set", "--device cuda")
    if not machine.gpus and config.device.device.startswith("cuda") and config.device.device != "cuda-or-cpu":
        yield Advice("problem", f"device {config.device.device} is set, and no GPU answers", "--device auto")


def _memory(machine: Machine, config: Config) -> Iterator[Advice]:
    limit = machine.memory_limit_bytes or machine.memory_bytes
    if limit is not None and config.engine.cache_bytes > limit // 4:
        yield Advice(
            "hint",
            f"the cache of vectors may grow to {config.engine.cache_bytes / 1e9:.1f} GB of {limit / 1e9:.1f} GB memory",
            f"--cache-bytes {limit // 10}",
        )


def _places(cache: Cache, ports: Sequence[Port], config: Config) -> Iterator[Advice]:
    if not cache.writable and not config.model.offline:
        yield Advice(
            "hint", f"{cache.folder} cannot be written: nothing can be downloaded", "--hub-cache, or --offline"
        )
    if cache.free_bytes is not None and cache.free_bytes < LEAST_FREE_BYTES and not config.model.offline:
        yield Advice("hint", f"{cache.free_bytes / 1e9:.1f} GB are free at {cache.folder}", "--hub-cache elsewhere")
    for port in ports:
        if port.problem is not None:
            yield Advice(
                "problem",
                f"{port.host} port {port.port} cannot be listened on ({port.problem})",
                f"--{port.setting.replace('_', '-')} with another one, or stop what is there",
            )
    if not config.server.demands_key and config.server.host in ("0.0.0.0", "::"):  # noqa: S104
        yield Advice("hint", "everyone who can reach this machine may use the server", "--api-key, or --host 127.0.0.1")
