"""The backend for models that have only an ONNX graph: OpenVINO runs it on the processor, with our heads.

checkpoints/files/onnx_file.py checks the file first, because the runtime opens every file that the graph names.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from vectord.checkpoints.files.onnx_file import read_onnx
from vectord.checkpoints.spec import ModelSpec
from vectord.compute.backends.base import BackendFacts, BackendOptions, PackedTexts
from vectord.compute.backends.onnx_graph import Answerer, Array, GraphBackend, check_inputs, feeds
from vectord.compute.backends.openvino import DTYPES, choose_precision, choose_wide_streams
from vectord.compute.backends.openvino_plans import InferencePrecision
from vectord.compute.ops.groups import Padded
from vectord.compute.ops.openvino import ov
from vectord.compute.processor import thread_budget
from vectord.errors import ModelUnavailable

logger = logging.getLogger(__name__)

MAX_BATCH_TOKENS = 1024  # padded tokens; the openvino backend has as many packed ones


def load(spec: ModelSpec, options: BackendOptions) -> GraphBackend:
    """Raises ConfigError for an unknown dtype, ModelUnavailable for a graph that is unsafe or of another model."""
    if options.device not in {"auto", "cpu"}:
        logger.warning("the onnx backend runs on the cpu, not on %s", options.device)
    path = spec.weights[0]
    answerer = Answerer(spec, read_onnx(path).outputs)
    core = ov.Core()
    precision = choose_precision(options.dtype, core, spec.architecture)
    threads = options.threads or thread_budget()
    facts = BackendFacts(
        name="onnx",
        device="cpu",
        dtype=DTYPES[precision],
        streams=options.streams or choose_wide_streams(threads),
        cost="padded",
        max_batch_tokens=options.max_batch_tokens or MAX_BATCH_TOKENS,
    )
    compile_with = partial(compile_plan, core, path, answerer.reads, threads)
    compile_graph = partial(compile_with, precision, facts.streams)
    backend = GraphBackend(facts, answerer, compile_graph(), compile_graph, partial(compile_with, "f32", 1))
    return backend.probed(spec)


class OnnxPlan:
    """The compiled graph, with one infer request for each stream."""

    def __init__(self, compiled: ov.CompiledModel, outputs: Sequence[str], streams: int) -> None:
        self._outputs = tuple(outputs)
        self._inputs = {port.get_any_name(): port.get_element_type().to_dtype() for port in compiled.inputs}
        self._requests = [compiled.create_infer_request() for _ in range(streams)]
        self.widths: dict[str, int | None] = {
            name: None if port.get_partial_shape()[-1].is_dynamic else port.get_partial_shape()[-1].get_length()
            for name, port in zip(outputs, compiled.outputs, strict=True)
        }

    def run(self, texts: PackedTexts, padded: Padded, stream: int) -> dict[str, Array]:
        try:
            answers = self._requests[stream].infer(feeds(self._inputs, texts, padded), share_outputs=True)
        except RuntimeError as error:
            if "bad_alloc" in str(error) or "out_of_memory" in str(error):
                raise MemoryError(f"no room for a batch of {padded.rows.size} padded tokens") from error
            raise
        return {name: answers[i] for i, name in enumerate(self._outputs)}


def compile_plan(
    core: ov.Core, path: Path, outputs: Sequence[str], threads: int, precision: InferencePrecision, streams: int
) -> OnnxPlan:
    """Compile a graph with these `outputs` only. Blocks, seconds for a large model. path: accepted by read_onnx."""
    config = {
        "INFERENCE_PRECISION_HINT": precision,
        "NUM_STREAMS": streams,
        "INFERENCE_NUM_THREADS": threads,
        "ENABLE_CPU_PINNING": False,  # as backends/openvino.py
    }
    try:
        whole = core.read_model(path)
        shapes = {port.get_any_name(): port.get_partial_shape() for port in whole.inputs}
        sizes = {name: [None if n.is_dynamic else n.get_length() for n in shape] for name, shape in shapes.items()}
        check_inputs(path, sizes)
        results = [whole.output(name).get_node().input_value(0) for name in outputs]
        compiled = core.compile_model(ov.Model(results, whole.get_parameters()), "CPU", config)
    except RuntimeError as error:  # OpenVINO's only exception
        reason = " ".join(str(error).split())[-300:]
        raise ModelUnavailable(f"{path}: OpenVINO cannot run this graph ({reason})") from error
    return OnnxPlan(compiled, outputs, streams)
