"""An ONNX graph as a backend, for either runtime: its inputs, and the use of its outputs.

backends/onnx.py and backends/onnxruntime.py compile the graph. It reads padded batches, so a batch costs its longest
text times its texts; pooling and the heads are ours if the graph returns its hidden states.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from vectord.checkpoints.spec import ModelSpec, Output
from vectord.compute.backends.base import Answers, Backend, BackendFacts, PackedTexts, TokenBatch
from vectord.compute.backends.invariance import SHORT_TOLERANCE, TOLERANCE, is_batch_invariant
from vectord.compute.networks.heads import heads_of
from vectord.compute.ops.groups import Padded, pad, spans_are_whole, texts_of_spans
from vectord.compute.ops.numpy import NumpyOps, pack
from vectord.errors import ModelUnavailable

logger = logging.getLogger(__name__)

Array: TypeAlias = npt.NDArray[Any]

LENGTH_STEP = 16  # a batch's length is rounded up to a multiple: runtimes keep memory for every shape

# Inputs, each (N, L), under the names of transformers' exporters.
_INPUTS: Mapping[str, Callable[[PackedTexts, Padded], Array]] = {
    "input_ids": lambda texts, padded: np.where(padded.filled, texts.ids[padded.rows], 0),
    "attention_mask": lambda texts, padded: padded.seen,
    "token_type_ids": lambda texts, padded: np.where(padded.filled, texts.type_ids[padded.rows], 0),
    "position_ids": lambda texts, padded: np.broadcast_to(np.arange(padded.rows.shape[1]), padded.rows.shape),
}
_NEEDED = frozenset({"input_ids", "attention_mask"})
_HIDDEN = ("last_hidden_state", "token_embeddings", "hidden_states")  # (N, L, H)
_MADE: Mapping[Output, str] = {"dense": "sentence_embedding", "scores": "logits"}  # (N, D), (N, labels)


def check_inputs(path: Path, shapes: Mapping[str, Sequence[int | None]]) -> None:
    """shapes: of the graph's inputs; None: any size. Raises ModelUnavailable for unsupported inputs."""
    if not _NEEDED <= shapes.keys() <= _INPUTS.keys():
        raise ModelUnavailable(
            f"{path}: the graph reads {', '.join(sorted(shapes))[:300]}; "
            f"supported are {', '.join(_INPUTS)}, and the first two are required"
        )
    for name, shape in shapes.items():
        if len(shape) != 2 or any(size is not None for size in shape):
            sizes = ", ".join("any" if size is None else str(size) for size in shape)
            raise ModelUnavailable(f"{path}: input {name} is ({sizes}), not texts by tokens of any number")


def feeds(dtypes: Mapping[str, npt.DTypeLike], texts: PackedTexts, padded: Padded) -> dict[str, Array]:
    return {name: _INPUTS[name](texts, padded).astype(dtype) for name, dtype in dtypes.items()}


class Answerer:
    """Computes the model's outputs from the graph's, on the thread that calls `forward`."""

    def __init__(self, spec: ModelSpec, given: Collection[str]) -> None:
        """given: the graph's outputs. Raises ModelUnavailable if the model needs others."""
        self._hidden = next((name for name in _HIDDEN if name in given), None)
        self._heads = heads_of(spec, NumpyOps()) if self._hidden is not None else {}
        # A vector of the graph's own comes before our pooling, which parts of a text still need; so do its scores.
        self._made = {
            output: name
            for output, name in _MADE.items()
            if output in spec.outputs - (self._heads.keys() - _MADE.keys())
            and name in given
            and not spec.scores_by_words
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
        """widths: of the graph's outputs; None: unknown. Raises ModelUnavailable if another width is expected."""
        for name, expected in self._widths.items():
            if widths[name] not in {expected, None}:
                raise ModelUnavailable(
                    f"the graph's {name} is {widths[name]} wide; by the model's files it is {expected}"
                )

    def answer(self, batch: TokenBatch, padded: Padded, given: Mapping[str, Array]) -> Answers:
        """given: the graph's outputs for the padded batch, by name."""
        answers: Answers = {}
        pools_parts = not spans_are_whole(batch.texts)
        for output in batch.outputs & self._made.keys():
            if pools_parts and output in self._heads:
                continue
            if pools_parts:
                raise ValueError("this graph pools whole texts and does not support parts of a text")
            rows = given[self._made[output]].reshape(len(padded.rows), -1)  # a single label may lack its dimension
            answers[output] = rows[texts_of_spans(batch.texts)].astype(np.float32)  # (M, D)
        if self._hidden is not None:
            states = given[self._hidden]
            x = states.reshape(-1, states.shape[-1])[padded.places].astype(np.float32)  # (T, H)
            tokens = pack(batch.texts)
            for output in (batch.outputs & self._heads.keys()) - answers.keys():
                answers[output] = self._heads[output](x, tokens).astype(np.float32)
        return answers


class Graph(Protocol):
    widths: dict[str, int | None]  # of its outputs, by name; None: unknown

    def run(self, texts: PackedTexts, padded: Padded, stream: int) -> Mapping[str, Array]:
        """Return the graph's outputs by name, valid until the stream's next run. Raises MemoryError."""


class GraphBackend(Backend):
    def __init__(
        self,
        facts: BackendFacts,
        answerer: Answerer,
        graph: Graph,
        compile_graph: Callable[[], Graph],
        compile_exact: Callable[[], Graph] | None = None,
    ) -> None:
        answerer.check(graph.widths)
        self.facts = facts
        self._length_step = LENGTH_STEP
        self._answerer = answerer
        self._graph = graph
        self._compile = compile_graph
        self._compile_exact = compile_exact
        self._exact: Graph | None = None
        self._exact_lock = threading.Lock()

    def probed(self, spec: ModelSpec) -> GraphBackend:
        """Return self, which from now on takes one text a batch if the graph lets a text's outputs depend on others.

        Graphs whose activations are quantized at run time share a scale in a batch.
        """
        tolerance = SHORT_TOLERANCE if self.facts.dtype in {"float16", "bfloat16"} else TOLERANCE
        if not is_batch_invariant(partial(self.forward, stream=0), spec, (), tolerance):
            logger.warning(
                "%s: a text's results depend on the texts in its batch, so each text runs alone", spec.weights[0]
            )
            self._length_step = 1
            self.facts = replace(self.facts, max_batch_texts=1)
        return self

    def forward(self, batch: TokenBatch, stream: int) -> Answers:
        assert 0 <= stream < self.facts.streams, "no such stream"
        return self._answer(self._graph, batch, stream)

    def forward_exact(self, batch: TokenBatch) -> Answers:
        if self._compile_exact is None:
            return self._answer(self._graph, batch, stream=0)
        with self._exact_lock:
            self._exact = self._exact or self._compile_exact()
            return self._answer(self._exact, batch, stream=0)

    def renew(self, stream: int) -> None:
        self._graph = self._compile()
        self._exact, self._exact_lock = None, threading.Lock()

    def close(self) -> None:
        del self._graph, self._exact

    def _answer(self, graph: Graph, batch: TokenBatch, stream: int) -> Answers:
        assert batch.texts.cu_seqlens.size > 1, "an empty batch"
        padded = pad(batch.texts, self._length_step, self._answerer.max_tokens)
        return self._answerer.answer(batch, padded, graph.run(batch.texts, padded, stream))
