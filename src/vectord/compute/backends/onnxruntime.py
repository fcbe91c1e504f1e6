"""The backend on ONNX Runtime, for models with a graph. Needs the onnxruntime extra.

checkpoints/graphs.py has chosen the file.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as state

from vectord.checkpoints.files.onnx_file import read_onnx
from vectord.checkpoints.graphs import dtype_of
from vectord.checkpoints.spec import ModelSpec
from vectord.compute.backends.base import BackendFacts, BackendOptions, PackedTexts
from vectord.compute.backends.onnx_graph import Answerer, Array, GraphBackend, check_inputs, feeds
from vectord.compute.ops.groups import Padded
from vectord.compute.processor import thread_budget
from vectord.errors import ConfigError, ModelUnavailable

logger = logging.getLogger(__name__)

CPU_BATCH_TOKENS = 1024  # padded tokens, as in the onnx backend
GPU_BATCH_TOKENS = 16_384  # as in the torch backend
CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
SHRINK = "memory.enable_memory_arena_shrinkage"

_DTYPES: Mapping[str, np.dtype[Any]] = {"tensor(int64)": np.dtype(np.int64), "tensor(int32)": np.dtype(np.int32)}
# Exceptions for graphs that the runtime cannot run, and for failed batches; they have no common class.
_FAULTS = (
    state.EPFail,
    state.Fail,
    state.InvalidArgument,
    state.InvalidGraph,
    state.InvalidProtobuf,
    state.NotImplemented,
    state.RuntimeException,
)


def load(spec: ModelSpec, options: BackendOptions) -> GraphBackend:
    """Raises ConfigError for an unknown device, ModelUnavailable for a graph that is unsafe or of another model."""
    path = spec.weights[0]
    answerer = Answerer(spec, read_onnx(path).outputs)
    threads = options.threads or thread_budget()
    provider = choose_provider(options.device)
    streams = 1 if provider == CUDA else options.streams or max(1, threads // 4)
    session = partial(
        OnnxSession,
        path,
        answerer.reads,
        provider,
        options.device,
        threads=max(1, threads - streams + 1),
        usual_tokens=options.max_batch_tokens,
    )
    graph = session()
    on_gpu = CUDA in graph.providers
    if provider == CUDA and not on_gpu:
        _warn_of_no_cuda()
    facts = BackendFacts(
        name="onnxruntime",
        device=_device(options.device) if on_gpu else "cpu",
        dtype=dtype_of(path),
        streams=streams,
        cost="padded",
        max_batch_tokens=graph.usual_tokens,
    )
    return GraphBackend(facts, answerer, graph, session).probed(spec)


def choose_provider(device: str) -> str:
    """Return CUDA if it is requested or allowed and this build of the runtime has it, else the processor."""
    kind = device.partition(":")[0]
    if kind not in {"auto", "cpu", "cuda", "mps"}:
        raise ConfigError("device must be auto, cpu, cuda, cuda:N or mps")
    if kind in {"auto", "cuda"} and CUDA in ort.get_available_providers():
        return CUDA
    if kind == "cuda":
        _warn_of_no_cuda()
    if kind == "mps":
        logger.warning("the onnxruntime backend runs on the cpu, not on %s", device)
    return CPU


def _warn_of_no_cuda() -> None:
    logger.warning(
        "CUDA requested but not available, falling back to CPU (of the packages, onnxruntime-gpu alone has CUDA)"
    )


def _device(device: str) -> str:
    return device if device.startswith("cuda:") else "cuda:0"


class OnnxSession:
    """A session that any number of threads may run at once."""

    def __init__(
        self, path: Path, outputs: Sequence[str], provider: str, device: str, *, threads: int, usual_tokens: int | None
    ) -> None:
        """path: a file that read_onnx has accepted. usual_tokens: after a larger batch, its memory is freed."""
        self._outputs = list(outputs)
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.enable_mem_pattern = False  # it keeps a plan for every shape, and texts have many shapes
        options.log_severity_level = 3  # errors only
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # the server needs the processor too
        providers: list[Any] = [CPU]
        if provider == CUDA:
            # By default the arena doubles and would hold up to twice the memory of the longest text.
            cuda = {"device_id": _gpu_number(device), "arena_extend_strategy": "kSameAsRequested"}
            providers = [(CUDA, cuda), CPU]
        try:
            self._session = ort.InferenceSession(path, options, providers)
        except _FAULTS as error:
            reason = " ".join(str(error).split())[-300:]
            raise ModelUnavailable(f"{path}: ONNX Runtime cannot run this graph ({reason})") from error
        inputs = self._session.get_inputs()
        check_inputs(path, {node.name: [_size(size) for size in node.shape] for node in inputs})
        if unknown := {node.type for node in inputs} - _DTYPES.keys():
            raise ModelUnavailable(f"{path}: the graph reads {', '.join(sorted(unknown))}, not whole numbers")
        self._dtypes = {node.name: _DTYPES[node.type] for node in inputs}
        self.widths: dict[str, int | None] = {
            node.name: _size(node.shape[-1]) for node in self._session.get_outputs() if node.shape
        }
        self.providers: Sequence[str] = self._session.get_providers()
        self.usual_tokens = usual_tokens or (GPU_BATCH_TOKENS if CUDA in self.providers else CPU_BATCH_TOKENS)
        self._arenas = arenas(self.providers, device)

    def run(self, texts: PackedTexts, padded: Padded, stream: int) -> dict[str, Array]:
        options = ort.RunOptions()
        if padded.rows.size > self.usual_tokens:
            options.add_run_config_entry(SHRINK, self._arenas)
        try:
            answers = self._session.run(self._outputs, feeds(self._dtypes, texts, padded), options)
        except _FAULTS as error:
            if any(words in str(error) for words in ("bad_alloc", "Failed to allocate memory", "out of memory")):
                raise MemoryError(f"no room for a batch of {padded.rows.size} padded tokens") from error
            raise RuntimeError(str(error)) from error
        return dict(zip(self._outputs, answers, strict=True))


def arenas(providers: Sequence[str], device: str) -> str:
    """Return a session's arenas in the form of SHRINK: the runtime refuses a batch that names another arena."""
    return f"cpu:0;gpu:{_gpu_number(device)}" if CUDA in providers else "cpu:0"


def _gpu_number(device: str) -> str:
    return _device(device).partition(":")[2]


def _size(size: object) -> int | None:
    """A dimension's size; None if it is symbolic or unknown."""
    return size if isinstance(size, int) else None
