"""Generates the table of advice in docs/tuning.md from `vectord doctor`, with example machines and settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from vectord.config import Config, DeviceConfig, EngineConfig, ServerConfig
from vectord.tools.doctor.advice import Advice, advice
from vectord.tools.doctor.facts import Cache, GpuFacts, Machine, Port
from vectord.tools.doctor.self_test import SelfTest

MACHINE = Machine(
    system="Linux",
    processor="a processor",
    features=(),
    bfloat16=False,
    int8=False,
    cores=4,
    affinity=4,
    threads=4,
    memory_bytes=16 * 10**9,
    memory_limit_bytes=None,
    memory_available_bytes=None,
    gpus=(),
)
CACHE = Cache(folder="/srv/hub", exists=True, writable=True, free_bytes=10**12)
ON_PROCESSOR = SelfTest(
    model="MODEL",
    state="ready",
    backend="openvino",
    device="cpu",
    dtype="float32",
    outputs=["dense"],
    dimensions=384,
    max_input_tokens=256,
    lone_ms=1.0,
    texts_per_s=100.0,
    problem=None,
)
GPU = GpuFacts(name="NVIDIA L4", driver="570.0", memory_mib=23_034)


def found() -> list[Advice]:
    """The advice of each situation, problems first."""
    each = [one for situation in _situations() for one in situation]
    return sorted(dict.fromkeys(each), key=lambda one: one.level != "problem")


def _situations() -> Iterator[list[Advice]]:
    config = Config()

    def given(
        machine: Machine = MACHINE,
        cache: Cache = CACHE,
        port: Port | None = None,
        tested: SelfTest = ON_PROCESSOR,
        config: Config = config,
        installed: tuple[str, ...] = (),
    ) -> list[Advice]:
        return advice(machine, cache, [] if port is None else [port], [tested], config, installed)

    def device(**settings: object) -> Config:
        return replace(config, device=replace(DeviceConfig(), **settings))  # type: ignore[arg-type]

    yield given(tested=replace(ON_PROCESSOR, state="failed", problem="could not be loaded; see the log"))
    yield given(config=device(dtype="bfloat16"))
    yield given(config=device(device="cuda"))
    yield given(port=Port(setting="port", host="127.0.0.1", port=8000, problem="address already in use"))
    yield given(machine=replace(MACHINE, threads=2))
    yield given(config=device(num_threads=2))
    yield given(machine=replace(MACHINE, affinity=32, threads=32))
    yield given(machine=replace(MACHINE, int8=True))
    yield given(machine=replace(MACHINE, gpus=(GPU,)))
    yield given(machine=replace(MACHINE, gpus=(GPU,)), config=device(device="cpu"), installed=("torch",))
    yield given(config=replace(config, engine=replace(EngineConfig(), cache_bytes=8 * 10**9)))
    yield given(cache=replace(CACHE, writable=False))
    yield given(cache=replace(CACHE, free_bytes=2 * 10**9))
    yield given(config=replace(config, server=replace(ServerConfig(), host="0.0.0.0")))  # noqa: S104
