"""Which backend computes a model, on which devices, from which files. Imports no backend.

The folder compute/backends/ is the list of backends.
"""

from __future__ import annotations

import logging
import pkgutil
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from msgspec import structs

from vectord.checkpoints.files.onnx_file import read_onnx
from vectord.checkpoints.fingerprint import changed
from vectord.checkpoints.graphs import find_graph, graph_patterns
from vectord.checkpoints.spec import NEVER_FLOAT16, ModelSpec
from vectord.compute import backends
from vectord.compute.backends.base import BackendFacts, BackendOptions, TextLimit
from vectord.compute.networks.network import find_architecture
from vectord.compute.processor import multiplies_int8, thread_budget
from vectord.config import DeviceConfig
from vectord.errors import ConfigError, installing

log = logging.getLogger("vectord")

NO_BACKENDS = frozenset({"base", "invariance", "onnx_graph", "openvino_plans"})  # other files
ADAPTER_BACKENDS = ("fake", "openvino", "torch")
MERGING_BACKENDS = (*ADAPTER_BACKENDS, "transformers")
DTYPE_BACKENDS: Mapping[str, Sequence[str]] = {  # of dtypes that not every backend has
    "int8": ("onnxruntime", "openvino", "torch"),
    "fp8": ("torch",),
    "int8-weights": ("openvino",),
    "int4-weights": ("openvino",),
}
SEVERAL_DEVICES = ("fake", "static", "torch", "transformers")  # backends that can run one model on several devices
GRAPH_BACKENDS = frozenset({"onnx", "onnxruntime"})


def backend_names() -> list[str]:
    return sorted({module.name for module in pkgutil.iter_modules(backends.__path__)} - NO_BACKENDS)


def check_backend(name: str) -> str:
    """`name`. Raises ConfigError if no backend has that name, or its library is not installed."""
    if name not in backend_names():
        raise ConfigError(f"unknown backend {name!r}; there are: auto, {', '.join(backend_names())}")
    if name in {"onnxruntime", "torch", "transformers"} and find_spec(name) is None:
        raise ConfigError(f"backend {name}: {name} is not installed; run {installing(name)}")
    return name


def check_dtype(backend: str, dtype: str) -> str:
    """`backend`. Raises ConfigError if it does not support the dtype. Logs a dtype that it does not use."""
    if backend not in (backends_with := DTYPE_BACKENDS.get(dtype, (backend,))):
        raise ConfigError(f"dtype {dtype}: the {backend} backend has none; those that have: {', '.join(backends_with)}")
    if backend in {"handler", "static"} and dtype in {"bfloat16", "float16"}:
        log.warning("dtype %s: the %s backend does not use it", dtype, backend)
    return backend


def without_images(spec: ModelSpec, backend: str) -> ModelSpec:
    """The model for texts alone, if its network of images is optional and fits neither the backend nor adapters."""
    fits = backend in ADAPTER_BACKENDS and not spec.adapters and spec.merged is None
    if fits or spec.image_text is None or spec.image_text.alone:
        return spec
    log.warning("%s: images are not read with adapters, or with the %s backend", spec.model_id, backend)
    return structs.replace(spec, images=None, image_text=None)


def check_adapters(spec: ModelSpec, backend: str) -> None:
    """Raises ConfigError for adapters or a network for images that the backend does not compute, or for adapters of a
    model with two networks."""
    if spec.query is not None and (spec.adapters or spec.query.adapters):
        raise ConfigError(f"{spec.model_id} has a network for queries and another for documents: adapters fit neither")
    if spec.images is not None and (spec.adapters or spec.merged is not None):
        raise ConfigError(f"{spec.model_id} has two networks: adapters fit neither")
    names = ", ".join(one.name for one in spec.adapters)
    for applies, what, able in (
        (spec.images is not None, "has two networks", ADAPTER_BACKENDS),
        (spec.merged is not None, "is an adapter of another model", MERGING_BACKENDS),
        (bool(spec.adapters), f"has adapters ({names})", ADAPTER_BACKENDS),
    ):
        if applies and backend not in able:
            raise ConfigError(
                f"{spec.model_id} {what}, which the {backend} backend does not compute; those that do: "
                f"{', '.join(able)}"
            )


def backend_of(spec: ModelSpec, device: DeviceConfig) -> str:
    """The configured backend; for auto, the one that fits the model: its handler, its graph, its network."""
    if spec.static is not None and device.backend != "fake":  # no other backend serves a table
        return "static"
    if device.backend != "auto":
        return device.backend
    if spec.handler is not None:
        return "handler"
    if spec.weights[0].suffix == ".onnx":
        return "onnx"
    if find_architecture(spec.architecture) is None and find_spec("transformers") is not None:
        return "transformers"
    if device.device.startswith("cpu") or (device.device == "auto" and not _cuda_count() and not _has_mps()):
        return "openvino"
    return "torch"


# --- devices --------------------------------------------------------------------------------------------------


def settle_device(device: DeviceConfig) -> DeviceConfig:
    """The configuration with devices that exist and at most as many threads as this process may use.

    Resolves cuda-or-cpu and cuda:all, and drops GPUs that are absent; without any GPU, the processor remains. A single
    GPU is checked only if its absence selects another backend.
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
        return "cuda"  # it falls back by itself and needs no torch
    if device.device != "cuda-or-cpu" and find_spec("torch") is None:
        return device.device  # the backend reports that torch is missing
    if single and device.backend != "auto":
        return device.device  # the backend checks it
    present = [f"cuda:{number}" for number in range(_cuda_count())]
    if device.device == "cuda:all":
        requested = present
    elif single or device.device == "cuda-or-cpu":
        requested = [device.device.removesuffix("-or-cpu")]
    else:
        requested = ["cuda:0" if name == "cuda" else name for name in device.device.split(",")]
    found = [name for name in requested if name in present or (name == "cuda" and present)]
    if not found:
        log.warning("CUDA requested but not available, falling back to CPU")
        return "cpu"
    for name in dict.fromkeys(requested):
        if name not in found:
            log.warning("%s requested but not available, going on with %s", name.upper(), ",".join(found))
    return ",".join(found)


def backend_options(device: DeviceConfig, backend: str) -> list[BackendOptions]:
    """The options of each copy of the model: one for each name in `device`. The copies share the processor's threads.

    Raises ConfigError for several copies if the backend supports one, and for batch_sizes of another form.
    """
    names = device.device.split(",")
    if len(names) > 1 and backend not in SEVERAL_DEVICES:
        raise ConfigError(
            f"the {backend} backend runs a model once, and {len(names)} copies were requested (device "
            f"{device.device}); those that run several: {', '.join(SEVERAL_DEVICES)}"
        )
    batch_sizes = device.batch_sizes if device.max_batch_requests is None else ()
    for entry in batch_sizes:
        if not re.fullmatch(r"\d{1,7}:\d{1,4}:[1-9]\d{0,5}", entry):
            raise ConfigError(f"batch_sizes: expected TOKENS:GIB:TEXTS such as 512:8:128, got {entry!r}")
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
            text_limits=tuple(TextLimit(*map(int, entry.split(":"))) for entry in batch_sizes),
        )
        for name in names
    ]


def check_alike(facts: Sequence[BackendFacts]) -> None:
    """Raises ConfigError if a text's result would depend on the device that runs it."""
    if len({(one.dtype, one.cost) for one in facts}) > 1:
        found = ", ".join(f"{one.device} in {one.dtype}" for one in facts)
        raise ConfigError(f"devices that compute in different dtypes: {found}; set dtype to one that all of them have")


def _cuda_count() -> int:
    """The number of CUDA devices that torch finds. Importing torch takes seconds: skipped without a driver's file."""
    files = (*Path("/dev").glob("nvidia[0-9]*"), Path("/dev/dxg"))
    if find_spec("torch") is None or not any(file.exists() for file in files):
        return 0
    return int(import_module("torch").cuda.device_count())


def _has_mps() -> bool:
    """Whether torch finds Apple's GPU. Checked on Apple's processors only."""
    if (sys.platform, platform.machine()) != ("darwin", "arm64") or find_spec("torch") is None:
        return False
    return bool(import_module("torch").backends.mps.is_available())


# --- ONNX graphs, for the backends that run them --------------------------------------------------------------


def required_graphs(device: DeviceConfig) -> tuple[str, ...]:
    """Patterns of the graph files that a download must include; none unless such a backend is configured."""
    if device.backend not in GRAPH_BACKENDS:
        return ()
    return graph_patterns(
        _graph_dtype(device.backend, device), device.onnx_file, has_vnni=multiplies_int8() is not False
    )


def with_graph(spec: ModelSpec, backend: str, device: DeviceConfig) -> ModelSpec:
    """The model with its graph as weights, and a fingerprint of its own if that changes them. It labels no tokens.

    A model that overflows in float16 uses its float32 graph, unless onnx_file names one.
    Raises ConfigError and ModelUnavailable, as find_graph does.
    """
    if backend not in GRAPH_BACKENDS:
        return spec
    folder = spec.tokenizer.parent  # with modules.json, the transformer's own
    dtype = _graph_dtype(backend, device)
    if dtype == "float16" and spec.architecture in NEVER_FLOAT16 and device.onnx_file is None:
        log.warning("%s overflows in float16; using float32", spec.architecture)
        dtype = "float32"
    graph = find_graph(folder, dtype, device.onnx_file, has_vnni=multiplies_int8() is not False)
    if graph == spec.weights[0]:
        return spec
    outputs = spec.outputs - {"token_scores"}
    return changed(spec, weights=(graph, *read_onnx(graph).data), outputs=outputs, token_labels=())


def _graph_dtype(backend: str, device: DeviceConfig) -> str:
    """The dtype of the file. OpenVINO converts any file to the dtype it computes in."""
    return device.dtype if backend == "onnxruntime" else "float32"
