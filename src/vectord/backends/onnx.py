"""The backend for models that ship an ONNX graph alone: OpenVINO runs it on the processor, our heads stand behind it.

models/opening.py calls `load`, in the thread that engine/loading.py starts; the engine's worker threads call
`forward`. The graph reads padded batches, so a batch costs its longest text times its texts. Pooling, and what
follows it, is ours wherever the graph gives its hidden states: spans and heads are then those of every other backend.

artifacts/onnx_file.py looks through the file first, for the runtime opens whatever files it names.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vectord.artifacts.files.onnx_file import read_onnx
from vectord.artifacts.spec import ModelSpec, Output
from vectord.backends.base import Answers, BackendFacts, BackendOptions, PackedTexts, TokenBatch
from vectord.backends.openvino import Precision, choose_precision, choose_wide_streams
from vectord.errors import ModelUnavailable
from vectord.networks.heads.any_body import heads_of
from vectord.ops.numpy import NumpyOps, pack
from vectord.ops.openvino import LENGTH_STEP, ov
from vectord.ops.padding import Padded, pad, spans_are_whole, texts_of_spans
from vectord.processor import thread_budget

logger = logging.getLogger(__name__)

MAX_BATCH_TOKENS = 1024  # padded ones; that many packed ones are the openvino backend's

Array: TypeAlias = npt.NDArray[Any]

_DTYPES: Mapping[Precision, str] = {"bf16": "bfloat16", "f32": "float32"}

# What graphs read, each (N, L), under the names that transformers' exporters give.
_INPUTS: Mapping[str, Callable[[PackedTexts, Padded], Array]] = {
    "input_ids": lambda texts, padded: np.where(padded.filled, texts.ids[padded.rows], 0),
    "attention_mask": lambda texts, padded: padded.seen,
    "token_type_ids": lambda texts, padded: np.where(padded.filled, texts.type_ids[padded.rows], 0),
    "position_ids": lambda texts, padded: np.broadcast_to(np.arange(padded.rows.shape[1]), padded.rows.shape),
}
_NEEDED = frozenset({"input_ids", "attention_mask"})
# What they give.
_HIDDEN = ("last_hidden_state", "token_embeddings", "hidden_states")  # (N, L, H)
_MADE: Mapping[Output, str] = {"dense": "sentence_embedding", "scores": "logits"}  # (N, D), (N, labels)


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
        arrays = {name: _INPUTS[name](texts, padded).astype(dtype) for name, dtype in self._inputs.items()}
        try:
            answers = self._requests[stream].infer(arrays, share_outputs=True)
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
        """Blocks, seconds for a large model. Raises ModelUnavailable for what OpenVINO, or _INPUTS, has no idea of."""
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
        if not _NEEDED <= shapes.keys() <= _INPUTS.keys():
            raise ModelUnavailable(
                f"{self._path}: the graph reads {', '.join(sorted(shapes))[:300]}; "
                f"what can be given is {', '.join(_INPUTS)}, and the first two are needed"
            )
        for name, shape in shapes.items():
            if len(shape) != 2 or not all(size.is_dynamic for size in shape):
                raise ModelUnavailable(f"{self._path}: input {name} is {shape}, not texts by tokens of any number")


# --- from the graph's answers to the model's ------------------------------------------------------------------


class Answerer:
    """What is made of a graph's answers, on the thread that calls `forward`."""

    def __init__(self, spec: ModelSpec, given: Collection[str]) -> None:
        """given: the graph's outputs. Raises ModelUnavailable if one of the model's cannot be made of them."""
        self._hidden = next((name for name in _HIDDEN if name in given), None)
        self._heads = heads_of(spec, NumpyOps()) if self._hidden is not None else {}
        self._made = {
            output: name
            for output, name in _MADE.items()
            if output in spec.outputs - self._heads.keys() and name in given and not spec.scores_by_words
        }
        if missing := spec.outputs - self._heads.keys() - self._made.keys():
            raise ModelUnavailable(
                f"{spec.weights[0]}: the graph gives {', '.join(given)[:300]}; no {' or '.join(sorted(missing))} can "
                f"be made of that, but of {_HIDDEN[0]}, {' or '.join(_MADE.values())}"
            )
        self.reads = tuple(self._made.values()) + ((self._hidden,) if self._hidden is not None else ())
        self.max_tokens = spec.max_tokens
        self._widths = {name: len(spec.labels) if name == "logits" else spec.dimensions for name in self._made.values()}
        if self._hidden is not None:
            self._widths[self._hidden] = spec.hidden_size

    def check(self, widths: Mapping[str, int | None]) -> None:
        """widths: of what the graph gives, where it says so. Raises ModelUnavailable if another is expected."""
        for name, expected in self._widths.items():
            if widths[name] not in {expected, None}:
                raise ModelUnavailable(
                    f"the graph's {name} is {widths[name]} wide; by the model's files it is {expected}"
                )

    def answer(self, batch: TokenBatch, padded: Padded, given: Mapping[str, Array]) -> Answers:
        """given: the graph's answers to the padded batch, by name."""
        answers: Answers = {}
        for output in batch.outputs & self._made.keys():
            if not spans_are_whole(batch.texts):
                raise ValueError("this graph pools whole texts, and a part of one was asked for")
            rows = given[self._made[output]].reshape(len(padded.rows), -1)  # a single label may lack its dimension
            answers[output] = rows[texts_of_spans(batch.texts)].astype(np.float32)  # (M, D)
        if self._hidden is not None:
            states = given[self._hidden]
            x = states.reshape(-1, states.shape[-1])[padded.places].astype(np.float32)  # (T, H)
            tokens = pack(batch.texts)
            for output in batch.outputs & self._heads.keys():
                answers[output] = self._heads[output](x, tokens).astype(np.float32)
        return answers
