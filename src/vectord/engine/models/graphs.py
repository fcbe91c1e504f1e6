"""Which ONNX graph stands for a model, where the operator asks for a backend that runs graphs."""

from __future__ import annotations

import logging
from dataclasses import replace

from vectord.checkpoints.files.onnx_file import read_onnx
from vectord.checkpoints.fingerprint import fingerprint
from vectord.checkpoints.graphs import find_graph, graph_patterns
from vectord.checkpoints.spec import NEVER_FLOAT16, ModelSpec
from vectord.compute.processor import multiplies_int8
from vectord.config import DeviceConfig

RUN_GRAPHS = frozenset({"onnx", "onnxruntime"})

logger = logging.getLogger(__name__)


def wanted_graphs(device: DeviceConfig) -> tuple[str, ...]:
    """Patterns of the files that a download must bring; none unless such a backend is named."""
    if device.backend not in RUN_GRAPHS:
        return ()
    return graph_patterns(_dtype(device.backend, device), device.onnx_file, sums_int8=_sums_int8())


def with_graph(spec: ModelSpec, backend: str, device: DeviceConfig) -> ModelSpec:
    """The model with its graph for weights, and of a fingerprint of its own where it had others.

    A model that overflows in float16 has its graph in float32, unless onnx_file names one.
    Raises ConfigError and ModelUnavailable, as find_graph.
    """
    if backend not in RUN_GRAPHS:
        return spec
    folder = spec.tokenizer.parent  # with modules.json, the transformer's own
    dtype = _dtype(backend, device)
    if dtype == "float16" and spec.architecture in NEVER_FLOAT16 and device.onnx_file is None:
        logger.warning("%s overflows in float16; using float32", spec.architecture)
        dtype = "float32"
    graph = find_graph(folder, dtype, device.onnx_file, sums_int8=_sums_int8())
    if graph == spec.weights[0]:
        return spec
    spec = replace(spec, weights=(graph, *read_onnx(graph).data), known_cosines=())
    return replace(spec, fingerprint=fingerprint(spec))


def _dtype(backend: str, device: DeviceConfig) -> str:
    """In which the file should be: OpenVINO makes what it computes in of any."""
    return device.dtype if backend == "onnxruntime" else "float32"


def _sums_int8() -> bool:
    return multiplies_int8() is not False
