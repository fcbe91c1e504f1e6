"""Who computes for a model, on which devices. The folder backends/ is the registry; imports none of them."""

from __future__ import annotations

import logging
import pkgutil
import platform
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from vectord.checkpoints.spec import ModelSpec
from vectord.compute import backends
from vectord.compute.backends.base import BackendFacts, BackendOptions
from vectord.compute.networks.network import architectures
from vectord.compute.processor import thread_budget
from vectord.config import DeviceConfig
from vectord.errors import ConfigError

log = logging.getLogger("vectord")

# What lies in the folder beside them.
NO_BACKENDS = frozenset({"base", "onnx_graph", "openvino_int8", "openvino_plans"})

INT8_BACKENDS = ("onnxruntime", "openvino", "torch")
SEVERAL_DEVICES = ("fake", "torch", "transformers")  # backends of which one model may have several
MOST_BACKENDS = 64  # of one model, each with the weights once more


def backend_names() -> list[str]:
    return sorted({module.name for module in pkgutil.iter_modules(backends.__path__)} - NO_BACKENDS)


def check_backend(name: str) -> str:
    """`name`. Raises ConfigError, listing those there are, if it is none, or one whose library is not here."""
    if name not in backend_names():
        raise ConfigError(f"unknown backend {name!r}; there are: auto, {', '.join(backend_names())}")
    if name in {"onnxruntime", "torch", "transformers"} and find_spec(name) is None:
        raise ConfigError(f"backend {name}: {name} is not installed; pip install 'vectord[{name}]'")
    return name


def check_dtype(backend: str, dtype: str) -> str:
    """`backend`. Raises ConfigError if it has no int8 and that is asked for."""
    if dtype == "int8" and backend not in INT8_BACKENDS:
        raise ConfigError(f"dtype int8: the {backend} backend has none; those that have: {', '.join(INT8_BACKENDS)}")
    return backend


def settle_device(device: DeviceConfig) -> DeviceConfig:
    """Devices that this machine has, and no more threads than the processor has for this process.

    cuda-or-cpu and cuda:all become names; of several GPUs those stay that are there, and without any it is the
    processor. A single one is looked for here only where its absence chooses another backend.
    """
    if device.device.startswith("cuda"):
        device = replace(device, device=_settle_cuda(device))
    if device.num_threads is not None and device.num_threads > thread_budget():
        log.warning("num_threads is more than this process may use at once: using %d", thread_budget())
        device = replace(device, num_threads=thread_budget())
    return device


def _settle_cuda(device: DeviceConfig) -> str:
    single = "," not in device.device and device.device not in ("cuda-or-cpu", "cuda:all")
    if device.device == "cuda-or-cpu" and device.backend == "onnxruntime":
        return "cuda"  # it falls back by itself, and needs no torch
    if device.device != "cuda-or-cpu" and find_spec("torch") is None:
        return device.device  # the backend says that torch is missing
    if single and device.backend != "auto":
        return device.device  # it looks itself
    there = [f"cuda:{number}" for number in range(_cuda_count())]
    if device.device == "cuda:all":
        asked = there
    elif single or device.device == "cuda-or-cpu":
        asked = [device.device.removesuffix("-or-cpu")]
    else:
        asked = ["cuda:0" if name == "cuda" else name for name in device.device.split(",")]
    found = [name for name in asked if name in there or (name == "cuda" and there)]
    if not found:
        log.warning("CUDA requested but not available, falling back to CPU")
        return "cpu"
    for name in dict.fromkeys(asked):
        if name not in found:
            log.warning("%s requested but not available, going on with %s", name.upper(), ",".join(found))
    return ",".join(found)


def backend_options(device: DeviceConfig, backend: str) -> list[BackendOptions]:
    """One for each that the model is loaded on: `device_replicas` of every device. They share the processor's threads.

    Raises ConfigError if these are several and the backend has no more than one.
    """
    names = [name for name in device.device.split(",") for _ in range(device.device_replicas)]
    if len(names) > 1 and backend not in SEVERAL_DEVICES:
        raise ConfigError(
            f"the {backend} backend runs a model once, and {len(names)} were asked for (device {device.device}, "
            f"device_replicas {device.device_replicas}); those that run several: {', '.join(SEVERAL_DEVICES)}"
        )
    if len(names) > MOST_BACKENDS:
        raise ConfigError(f"device and device_replicas: at most {MOST_BACKENDS} for a model; these are {len(names)}")
    threads = device.num_threads
    if len(names) > 1:
        threads = max(1, (threads or thread_budget()) // len(names))
    return [
        BackendOptions(
            device=name,
            sharers=names.count(name),
            dtype=device.dtype,
            threads=threads,
            max_batch_tokens=device.max_batch_tokens,
            tf32=device.tf32,
            device_memory_mib=device.device_memory_mib,
            graph_memory_mib=device.graph_memory_mib,
            capacity_s=device.capacity_s,
            texts_by_memory=device.batch_sizes != "measured" and device.max_batch_requests is None,
        )
        for name in names
    ]


def check_alike(facts: Sequence[BackendFacts]) -> None:
    """Raises ConfigError if a text's answer would depend on which device runs it."""
    if len({(one.dtype, one.cost) for one in facts}) > 1:
        found = ", ".join(f"{one.device} in {one.dtype}" for one in facts)
        raise ConfigError(f"devices that compute in different numbers: {found}; say in dtype what all of them can")


def backend_of(spec: ModelSpec, device: DeviceConfig) -> str:
    """The backend asked for, or for auto the one for the model: its own class, its graph, its network."""
    if device.backend != "auto":
        return device.backend
    if spec.handler is not None:
        return "handler"
    if spec.weights[0].suffix == ".onnx":
        return "onnx"
    if spec.architecture.replace("-", "_") not in architectures() and find_spec("transformers") is not None:
        return "transformers"
    return _usual_backend(device.device)


def _usual_backend(device: str) -> str:
    if device.startswith("cpu") or (device == "auto" and not _cuda_count() and not _has_mps()):
        return "openvino"
    return "torch"


def _cuda_count() -> int:
    """How many CUDA devices torch would find. It takes seconds to import: not without a driver's device file."""
    files = (*Path("/dev").glob("nvidia[0-9]*"), Path("/dev/dxg"))
    if find_spec("torch") is None or not any(file.exists() for file in files):
        return 0
    return int(import_module("torch").cuda.device_count())


def _has_mps() -> bool:
    """Whether torch would find Apple's GPU: not asked of any other machine."""
    if (sys.platform, platform.machine()) != ("darwin", "arm64") or find_spec("torch") is None:
        return False
    return bool(import_module("torch").backends.mps.is_available())
