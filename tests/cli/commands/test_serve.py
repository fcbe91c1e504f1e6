"""How many processes `vectord serve` starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from vectord.cli.commands import serve
from vectord.config import Config, DeviceConfig, ServerConfig

NEVER = {
    "a processor": Config(device=DeviceConfig(device="cpu")),
    "a backend without torch": Config(device=DeviceConfig(backend="openvino")),
    "one process, as set": Config(server=ServerConfig(front_ends=1)),
    "a chosen number": Config(server=ServerConfig(front_ends=7)),
    "a store of batches": Config(server=ServerConfig(batch_dir="batches")),
}


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """16 cores, torch, and the driver of a GPU."""
    (tmp_path / "driver").touch()
    monkeypatch.setattr(serve, "GPU_DRIVERS", (str(tmp_path / "driver"),))
    monkeypatch.setattr(serve, "find_spec", lambda name: name)
    monkeypatch.setattr(serve.os, "cpu_count", lambda: 16)


@pytest.mark.parametrize(("cores", "expected"), [(2, 0), (4, 2), (15, 2), (16, 4)])
@pytest.mark.parametrize("device", ["auto", "cuda", "cuda:1", "cuda-or-cpu"])
def test_a_gpu_has_an_engine_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch, device: str, cores: int, expected: int
) -> None:
    monkeypatch.setattr(serve.os, "cpu_count", lambda: cores)

    config = serve.with_front_ends(Config(device=DeviceConfig(device=device)))

    assert config.server.front_ends == expected


@pytest.mark.parametrize("config", NEVER.values(), ids=NEVER)
def test_nothing_else_changes_the_number_of_processes(config: Config) -> None:
    assert serve.with_front_ends(config) == config


def test_a_machine_without_a_driver_has_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "GPU_DRIVERS", ("/dev/no-such-driver",))

    assert serve.with_front_ends(Config()) == Config()
