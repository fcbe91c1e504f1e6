"""Who computes for a model, on which device. The folder backends/ is the registry; imports none of them."""

from __future__ import annotations

import logging
import pkgutil
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from vectord import backends
from vectord.artifacts.spec import ModelSpec
from vectord.backends.base import BackendOptions
from vectord.config import DeviceConfig
from vectord.errors import ConfigError
from vectord.networks.network import architectures
from vectord.processor import thread_budget

log = logging.getLogger("vectord")

# What lies in the folder beside them.
NO_BACKENDS = frozenset({"base", "onnx_graph", "openvino_int8", "openvino_plans"})

INT8_BACKENDS = ("onnxruntime", "openvino", "torch")


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
    """cuda-or-cpu becomes one of the two, and no more threads are left than the processor has for this process."""
    if device.device == "cuda-or-cpu" and device.backend == "onnxruntime":
        device = replace(device, device="cuda")  # it falls back by itself, and needs no torch
    if device.device == "cuda-or-cpu":
        device = replace(device, device="cuda" if _has_cuda() else "cpu")
        if device.device == "cpu":
            log.warning("CUDA requested but not available, falling back to CPU")
    if device.num_threads is not None and device.num_threads > thread_budget():
        log.warning("num_threads is more than this process may use at once: using %d", thread_budget())
        device = replace(device, num_threads=thread_budget())
    return device


def backend_options(device: DeviceConfig) -> BackendOptions:
    return BackendOptions(
        device=device.device,
        dtype=device.dtype,
        threads=device.num_threads,
        max_batch_tokens=device.max_batch_tokens,
        tf32=device.tf32,
        device_memory_mib=device.device_memory_mib,
        graph_memory_mib=device.graph_memory_mib,
        capacity_s=device.capacity_s,
        batch_sizes=device.batch_sizes if device.max_batch_requests is None else "measured",
    )


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
    if device == "cpu" or (device == "auto" and not _has_cuda()):
        return "openvino"
    return "torch"


def _has_cuda() -> bool:
    """Whether torch would find a CUDA device. torch takes seconds to import: not without a driver's device file."""
    if find_spec("torch") is None or not any(Path(name).exists() for name in ("/dev/nvidia0", "/dev/dxg")):
        return False
    return bool(import_module("torch").cuda.is_available())
