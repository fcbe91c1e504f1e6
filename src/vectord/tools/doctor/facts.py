"""Facts about the machine and the installation: CPU, memory, GPUs, libraries, the model cache, settings, ports.

Reads small files in /proc and /sys, and runs nvidia-smi.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from vectord import __version__
from vectord.compute.processor import (
    cgroup_folders,
    multiplies_bfloat16,
    multiplies_int8,
    read_small,
    thread_budget,
)
from vectord.config import ServerConfig
from vectord.config.sources import Loaded

# Instruction sets for matrix products, by their names in /proc/cpuinfo.
FEATURES = (
    *("avx2", "fma", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"),
    *("asimd", "asimddp", "bf16", "i8mm", "sve"),
)
_SMI_TIMEOUT_S = 10
_UNLIMITED_BYTES = 2**60  # cgroups v1 reports "no limit" as a larger number
LIBRARIES = (
    *("openvino", "tokenizers", "numpy", "huggingface_hub", "starlette", "httptools", "uvloop", "httpx"),
    *("torch", "transformers", "onnxruntime", "onnxruntime-gpu", "pyarrow", "grpcio", "redis"),
)


# --- the machine ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    name: str
    driver: str
    memory_mib: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    system: str
    processor: str
    features: tuple[str, ...]
    bfloat16: bool | None  # has instructions for it; None: unknown
    int8: bool | None
    cores: int
    affinity: int  # cores that this process may use
    threads: int  # threads of vectord: affinity limited by the cgroup's quota
    memory_bytes: int | None
    memory_limit_bytes: int | None  # the least of the cgroup and its parents
    memory_available_bytes: int | None
    gpus: tuple[GpuFacts, ...]


def read_machine(root: Path = Path("/")) -> Machine:
    """root: the folder with proc and sys."""
    cpuinfo = _pairs(root / "proc/cpuinfo")
    flags = (cpuinfo.get("flags") or cpuinfo.get("Features") or "").split()
    memory = _pairs(root / "proc/meminfo")
    names = ("memory.max", "memory.limit_in_bytes")  # of cgroup version 2, and of version 1
    limits = [read_small(folder / name) for folder in cgroup_folders(root, "memory") for name in names]
    limits_bytes = [int(text) for text in limits if text.isdigit() and int(text) < _UNLIMITED_BYTES]
    return Machine(
        system=f"{platform.system()} {platform.release()}, {platform.machine()}",
        processor=cpuinfo.get("model name") or platform.processor() or platform.machine(),
        features=tuple(name for name in FEATURES if name in flags),
        bfloat16=multiplies_bfloat16(root),
        int8=multiplies_int8(root),
        cores=os.cpu_count() or 1,
        affinity=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        threads=thread_budget(root),
        memory_bytes=_kib(memory.get("MemTotal")),
        memory_limit_bytes=min(limits_bytes, default=None),
        memory_available_bytes=_kib(memory.get("MemAvailable")),
        gpus=_gpus(),
    )


def _pairs(path: Path) -> dict[str, str]:
    """Lines `name: value`; the first value of each name."""
    found: dict[str, str] = {}
    for line in read_small(path).splitlines():
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    return found


def _kib(text: str | None) -> int | None:
    number = (text or "").split(" ")[0]
    return int(number) * 1024 if number.isdigit() else None


def _gpus() -> tuple[GpuFacts, ...]:
    """The GPUs that nvidia-smi lists; none if it is missing or fails."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return ()
    command = [smi, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader,nounits"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_SMI_TIMEOUT_S)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ()
    rows = [[part.strip() for part in line.split(",")] for line in listed.stdout.splitlines()]
    return tuple(
        GpuFacts(name=row[0], driver=row[1], memory_mib=int(row[2]) if row[2].isdigit() else None)
        for row in rows
        if len(row) == 3
    )


# --- the installation -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    folder: str
    exists: bool
    writable: bool  # the folder, or its closest parent that exists
    free_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedSetting:
    """A setting that is not at its default."""

    setting: str
    value: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    setting: str
    host: str
    port: int
    problem: str | None  # why it is not available


def read_versions() -> dict[str, str]:
    """Versions of Python, vectord and the installed libraries of LIBRARIES."""
    found = {"vectord": __version__, "Python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def read_cache(folder: Path) -> Cache:
    """Writes nothing to the folder."""
    nearest = next((place for place in (folder, *folder.absolute().parents) if place.is_dir()), Path("/"))
    try:
        free_bytes = shutil.disk_usage(nearest).free
    except OSError:
        free_bytes = None
    writable = os.access(nearest, os.W_OK | os.X_OK)
    return Cache(folder=str(folder), exists=folder.is_dir(), writable=writable, free_bytes=free_bytes)


def read_settings(loaded: Loaded) -> list[ChangedSetting]:
    """Settings that differ from their defaults, with their sources. Secrets are ***."""
    found = []
    for setting, value, origin in loaded.printable():
        if origin.source != "default":
            text = ", ".join(value) if isinstance(value, tuple) else str(value)
            found.append(ChangedSetting(setting=f"{setting.section}.{setting.name}", value=text, source=str(origin)))
    return found


def read_ports(config: ServerConfig) -> Sequence[Port]:
    ports = {"port": config.port, "grpc_port": config.grpc_port, "prometheus_port": config.prometheus_port}
    return [
        Port(setting=setting, host=config.host, port=port, problem=_problem(config.host, port))
        for setting, port in ports.items()
        if port
    ]


def _problem(host: str, port: int) -> str | None:
    """The reason why the server cannot listen there; None if it can."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return error.strerror or type(error).__name__
    return None
