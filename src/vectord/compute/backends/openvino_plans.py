"""Graphs compiled, and run: what the openvino backend serves with, and fits its int8 by.

backends/openvino.py decides which plans there are; backends/openvino_int8.py compiles others while a model loads.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from vectord.checkpoints.checkpoint import open_checkpoint
from vectord.checkpoints.spec import ModelSpec
from vectord.compute.backends.base import POOLED, Answers, TokenBatch
from vectord.compute.calibration.recipe import Recipe
from vectord.compute.heap import trim_heap
from vectord.compute.networks.network import Network
from vectord.compute.ops.int8 import Int8Ops
from vectord.compute.ops.openvino import Graph, OpenvinoOps, build, ov

LONG_TOKENS = 4096  # after a batch of more, its memory is given back

Precision = Literal["bf16", "f32"]  # as OpenVINO calls them


class Plan:
    """One compiled graph, and an infer request for each of its streams."""

    def __init__(self, compiled: ov.CompiledModel, graph: Graph, ops: OpenvinoOps, streams: int) -> None:
        self._ops = ops  # owns the memory of the graph's constants
        self._graph = graph
        self._compiled = compiled
        self._requests = [compiled.create_infer_request() for _ in range(streams)]

    def run(self, batch: TokenBatch, stream: int) -> Answers:
        """What is asked of the graph's answers, for the caller to keep. No two threads may share a stream at a time.

        Raises MemoryError.
        """
        request = self._requests[stream]
        arrays = self._set_inputs(request, batch)
        try:
            answers = request.infer(share_outputs=True)
        except RuntimeError as error:
            if "bad_alloc" in str(error) or "out_of_memory" in str(error):
                raise MemoryError(f"no room for a batch of {batch.texts.ids.size} tokens") from error
            raise
        del arrays  # the request reads them in place: they had to live until here
        asked = {output: answers[self._graph.outputs.index(output)] for output in batch.outputs}
        if batch.texts.ids.size > LONG_TOKENS:
            self._forget(stream)
            return asked  # in memory that was the request's, and is theirs alone now
        return {name: rows.copy() for name, rows in asked.items()}

    def beside(self) -> Plan:
        """The same graph with one request of its own, for a stream that no worker has."""
        return Plan(self._compiled, self._graph, self._ops, streams=1)

    def warm_up(self, batch: TokenBatch) -> None:
        """Run `batch` on all streams at once. No other call may be under way.

        What a stream runs first should be its largest batch: its buffers then have their final size, where growing
        to it step by step leaves the outgrown ones behind in the heap.
        """
        arrays = [self._set_inputs(request, batch) for request in self._requests]
        for request in self._requests:
            request.start_async()
        for request in self._requests:
            request.wait()
            if not all(np.isfinite(tensor.data).all() for tensor in request.output_tensors):
                raise RuntimeError("the plan's first answer is not finite")
        del arrays

    def _forget(self, stream: int) -> None:
        """Give back the memory that a long batch took: with BGE-M3's shape 250 MB for 8,192 tokens."""
        self._requests[stream] = self._compiled.create_infer_request()
        self._compiled.release_memory()  # of streams that are idle; the others' is of the usual size
        trim_heap()

    def _set_inputs(self, request: ov.InferRequest, batch: TokenBatch) -> list[npt.NDArray[np.generic]]:
        arrays = self._graph.pack(batch.texts, batch.outputs)
        request.set_input_tensors({i: ov.Tensor(array, shared_memory=True) for i, array in enumerate(arrays)})
        return arrays


class Compiler:
    """Makes plans of one model, over one checkpoint."""

    def __init__(self, spec: ModelSpec, core: ov.Core, precision: Precision, threads: int) -> None:
        self.spec = spec
        self.precision = precision
        self.recipe: Recipe | None = None  # for int8; what the rest is computed in is `precision`
        self._threads = threads
        self._core = core
        self._checkpoint = open_checkpoint(spec.weights)

    @property
    def plan_bytes(self) -> int:
        """About what each plan holds for itself: all weights, laid out anew, but for the table of word vectors."""
        sizes = [weight.array.size for weight in self._checkpoint.values()]
        bytes_each = 1 if self.recipe is not None else {"bf16": 2, "f32": 4}[self.precision]
        return (sum(sizes) - max(sizes, default=0)) * bytes_each

    def compile(self, streams: int, groups: int, precision: Precision | None = None) -> Plan:
        """A plan that gives all of the model's outputs: beside the body, what was not asked for costs next to nothing.

        precision: instead of the model's own and of its int8.
        Blocks, seconds for a large model. Raises ModelUnavailable if the checkpoint does not fit the config.
        """
        ops = OpenvinoOps() if self.recipe is None or precision is not None else Int8Ops(self.recipe)
        graph = self.graph(ops, self.spec, groups)
        return Plan(self.compile_graph(graph, streams, precision), graph, ops, streams)

    def graph(self, ops: OpenvinoOps, spec: ModelSpec, groups: int) -> Graph:
        """What gives the spec's outputs, which may be others than the model's own."""
        network = self.network(ops, spec)
        return build(lambda tokens: network(tokens, spec.outputs), groups, by_token=spec.outputs - POOLED)

    def network(self, ops: OpenvinoOps, spec: ModelSpec) -> Network[ov.Node]:
        return Network(spec, self._checkpoint, ops)

    def compile_graph(self, graph: Graph, streams: int, precision: Precision | None = None) -> ov.CompiledModel:
        config = {
            "INFERENCE_PRECISION_HINT": precision or self.precision,
            "NUM_STREAMS": streams,
            "INFERENCE_NUM_THREADS": self._threads,
            "ENABLE_CPU_PINNING": False,  # no faster here, and two servers would be pinned to the same processors
        }
        compiled = self._core.compile_model(graph.model, "CPU", config)
        self.release()
        return compiled

    def release(self) -> None:
        """Give back the pages of the checkpoint that were read, and those that the heap has free.

        Compiling reads all of it, and a plan's first batch all matrices, to lay them out as it needs them.
        """
        self._checkpoint.release()
        trim_heap()

    def close(self) -> None:
        self._checkpoint.close()
