"""The backend for models that ship an ONNX graph alone: OpenVINO runs it on the processor, our heads stand behind it.

models/opening.py calls `load`, in the thread that engine/loading.py starts; the engine's worker threads call
`forward`. The graph reads padded batches, so a batch costs its longest text times its texts (onnx_graph.py).

artifacts/onnx_file.py looks through the file first, for the runtime opens whatever files it names.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from vectord.checkpoints.files.onnx_file import read_onnx
from vectord.checkpoints.spec import ModelSpec
from vectord.compute.backends.base import Answers, BackendFacts, BackendOptions, PackedTexts, TokenBatch
from vectord.compute.backends.onnx_graph import LENGTH_STEP, Answerer, Array, check_inputs, feeds
from vectord.compute.backends.openvino import choose_precision, choose_wide_streams
from vectord.compute.backends.openvino_plans import Precision
from vectord.compute.ops.openvino import ov
from vectord.compute.ops.padding import Padded, pad
from vectord.compute.processor import thread_budget
from vectord.errors import ModelUnavailable

logger = logging.getLogger(__name__)

MAX_BATCH_TOKENS = 1024  # padded ones; that many packed ones are the openvino backend's

_DTYPES: Mapping[Precision, str] = {"bf16": "bfloat16", "f32": "float32"}


def load(spec: ModelSpec, options: BackendOptions) -> OnnxBackend:
    """Raises ConfigError for an unknown dtype, ModelUnavailable for a graph that is not safe, or not this model's."""
    if options.device not in {"auto", "cpu"}:
        logger.warning("the onnx backend runs on the cpu, not on %s", options.device)
    path = spec.weights[0]
    answerer = Answerer(spec, read_onnx(path).outputs)
    core = ov.Core()
    precision = choose_precision(options.dtype, core)
    threads = options.threads or thread_budget()
    facts = BackendFacts(
        name="onnx",
        device="cpu",
        dtype=_DTYPES[precision],
        streams=options.streams or choose_wide_streams(threads),
        cost="padded",
        max_batch_tokens=options.max_batch_tokens or MAX_BATCH_TOKENS,
    )
    return OnnxBackend(facts, Compiler(core, path, answerer.reads, threads), answerer, precision)


class OnnxBackend:
    """One graph on the processor. `facts.streams` workers may call `forward` at once."""

    def __init__(self, facts: BackendFacts, compiler: Compiler, answerer: Answerer, precision: Precision) -> None:
        self.facts = facts
        self._compiler = compiler
        self._answerer = answerer
        self._precision = precision
        self._plan = compiler.compile(precision, facts.streams)
        self._exact: Plan | None = None
        self._exact_lock = threading.Lock()
        answerer.check(self._plan.widths)

    def forward(self, batch: TokenBatch, stream: int) -> Answers:
        """See Backend.forward."""
        assert 0 <= stream < self.facts.streams, "no such stream"
        return self._answer(self._plan, batch, stream)

    def forward_exact(self, batch: TokenBatch) -> Answers:
        """See Backend.forward_exact. Its plan is compiled when it is first needed, which few servers ever see."""
        with self._exact_lock:
            if self._exact is None:
                self._exact = self._compiler.compile("f32", streams=1)
            return self._answer(self._exact, batch, stream=0)

    def renew(self, stream: int) -> None:
        """See Backend.renew. A plan anew: the hung forward keeps the runtime's own threads."""
        self._plan = self._compiler.compile(self._precision, self.facts.streams)
        self._exact, self._exact_lock = None, threading.Lock()

    def close(self) -> None:
        """Give everything back. No forward may be under way or follow."""
        del self._plan, self._exact

    def _answer(self, plan: Plan, batch: TokenBatch, stream: int) -> Answers:
        assert batch.texts.cu_seqlens.size > 1, "an empty batch"
        padded = pad(batch.texts, LENGTH_STEP, self._answerer.max_tokens)
        return self._answerer.answer(batch, padded, plan.run(batch.texts, padded, stream))


# --- the graph ------------------------------------------------------------------------------------------------


class Plan:
    """The graph compiled, and an infer request for each of its streams."""

    def __init__(self, compiled: ov.CompiledModel, outputs: Sequence[str], streams: int) -> None:
        self._outputs = tuple(outputs)
        self._inputs = {port.get_any_name(): port.get_element_type().to_dtype() for port in compiled.inputs}
        self._requests = [compiled.create_infer_request() for _ in range(streams)]
        self.widths = {
            name: None if port.get_partial_shape()[-1].is_dynamic else port.get_partial_shape()[-1].get_length()
            for name, port in zip(outputs, compiled.outputs, strict=True)
        }

    def run(self, texts: PackedTexts, padded: Padded, stream: int) -> dict[str, Array]:
        """The graph's answers by name, valid until the stream's next run. Raises MemoryError."""
        try:
            answers = self._requests[stream].infer(feeds(self._inputs, texts, padded), share_outputs=True)
        except RuntimeError as error:
            if "bad_alloc" in str(error) or "out_of_memory" in str(error):
                raise MemoryError(f"no room for a batch of {padded.rows.size} padded tokens") from error
            raise
        return {name: answers[i] for i, name in enumerate(self._outputs)}


class Compiler:
    """Makes plans of one graph that give `outputs`, and nothing it has beside them."""

    def __init__(self, core: ov.Core, path: Path, outputs: Sequence[str], threads: int) -> None:
        """The file must be one that read_onnx has let pass."""
        self._core = core
        self._path = path
        self._outputs = outputs
        self._threads = threads

    def compile(self, precision: Precision, streams: int) -> Plan:
        """Blocks, seconds for a large model. Raises ModelUnavailable for what OpenVINO has no idea of."""
        config = {
            "INFERENCE_PRECISION_HINT": precision,
            "NUM_STREAMS": streams,
            "INFERENCE_NUM_THREADS": self._threads,
            "ENABLE_CPU_PINNING": False,  # as backends/openvino.py
        }
        try:
            whole = self._core.read_model(self._path)
            self._check_inputs(whole)
            wanted = [whole.output(name).get_node().input_value(0) for name in self._outputs]
            compiled = self._core.compile_model(ov.Model(wanted, whole.get_parameters()), "CPU", config)
        except RuntimeError as error:  # OpenVINO's only one
            reason = " ".join(str(error).split())[-300:]
            raise ModelUnavailable(f"{self._path}: OpenVINO cannot run this graph ({reason})") from error
        return Plan(compiled, self._outputs, streams)

    def _check_inputs(self, model: ov.Model) -> None:
        shapes = {port.get_any_name(): port.get_partial_shape() for port in model.inputs}
        check_inputs(
            self._path,
            {name: [None if n.is_dynamic else n.get_length() for n in shape] for name, shape in shapes.items()},
        )
