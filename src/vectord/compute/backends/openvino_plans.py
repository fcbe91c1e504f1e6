"""Compiled graphs and their execution. backends/openvino.py decides which plans there are."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Literal
from weakref import WeakSet

import numpy as np

from vectord.checkpoints.checkpoint import Weight, open_checkpoint
from vectord.checkpoints.spec import ModelSpec
from vectord.compute.backends.base import POOLED, Answers, TokenBatch
from vectord.compute.memory import Scratch, trim_heap
from vectord.compute.networks.network import Network
from vectord.compute.ops.openvino import OpenvinoGraph, OpenvinoOps, build, ov
from vectord.compute.ops.packed_weights import PackedWeightsOps, Packing
from vectord.errors import ModelUnavailable
from vectord.housekeeping import Housekeeping

RELEASE_S = 0.05  # the runtime lays out about 2 GB/s
LONG_TOKENS = 4096  # after a longer batch, its memory is freed

InferencePrecision = Literal["bf16", "f32"]  # OpenVINO's names


class GraphMemory:
    """The memory that a compiled graph keeps for the next batch, as large as its longest batch needed.

    OpenVINO frees it for all streams together, and only while none of them runs: after a long batch, the first stream
    that ends while the others are idle frees it. Until then it is at most that of the longest batch on every stream.
    """

    def __init__(self, compiled: ov.CompiledModel) -> None:
        self._compiled = compiled
        self._lock = threading.Lock()
        self._running = 0
        self._is_large = False

    @contextmanager
    def in_use(self, tokens: int) -> Iterator[None]:
        with self._lock:
            self._running += 1
            self._is_large |= tokens > LONG_TOKENS
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1

    @property
    def is_in_use(self) -> bool:
        return self._running > 0

    def mark_large(self) -> None:
        """The next batches will be short: what earlier ones needed is to be freed."""
        with self._lock:
            self._is_large = True

    def free(self) -> None:
        """Free it, if it is large and nothing runs. A batch that starts meanwhile waits for the end."""
        with self._lock:
            if self._running or not self._is_large:
                return
            self._compiled.release_memory()
            self._is_large = False
        trim_heap()


class Plan:
    """One compiled graph, with one infer request for each stream."""

    def __init__(
        self,
        compiled: ov.CompiledModel,
        graph: OpenvinoGraph,
        ops: OpenvinoOps,
        streams: int,
        memory: GraphMemory | None = None,
    ) -> None:
        """memory: that of another plan with the same compiled graph."""
        self._ops = ops  # owns the memory of the graph's constants
        self._graph = graph
        self._compiled = compiled
        self.memory = memory or GraphMemory(compiled)
        self.lock = threading.Lock()  # of a plan that several streams share
        self._requests = [compiled.create_infer_request() for _ in range(streams)]

    def run(self, batch: TokenBatch, stream: int) -> Answers:
        """Return the requested outputs; the caller owns them. Two threads never share a stream at a time."""
        tokens = batch.texts.ids.size
        # A request keeps the memory of its outputs, so a long batch has one of its own.
        request = self._requests[stream] if tokens <= LONG_TOKENS else self._compiled.create_infer_request()
        tensors = self._set_inputs(request, batch)
        try:
            with self.memory.in_use(tokens):
                answers = request.infer(share_outputs=True)
        except RuntimeError as error:
            if "bad_alloc" in str(error) or "out_of_memory" in str(error):
                raise MemoryError(f"no room for a batch of {tokens} tokens") from error
            raise
        del tensors  # the request reads them in place
        return {output: answers[self._graph.outputs.index(output)].copy() for output in batch.outputs}

    def with_own_request(self) -> Plan:
        """Return the same graph with a separate request, for a stream that no worker uses."""
        return Plan(self._compiled, self._graph, self._ops, streams=1, memory=self.memory)

    def warm_up(self, batch: TokenBatch) -> None:
        """Run `batch` on all streams at once. No other call may be running.

        A stream should run its largest batch first: its buffers then have their final size, while growing step by step
        would leave the outgrown buffers in the heap.
        """
        tensors = [self._set_inputs(request, batch) for request in self._requests]
        for request in self._requests:
            request.start_async()
        for request in self._requests:
            request.wait()
            if not all(np.isfinite(tensor.data).all() for tensor in request.output_tensors):
                raise ModelUnavailable("the first answer is not finite: broken weights, or a faulty processor")
        del tensors

    def _set_inputs(self, request: ov.InferRequest, batch: TokenBatch) -> list[ov.Tensor]:
        tensors = self._graph.pack(batch.texts, batch.outputs)
        request.set_input_tensors(dict(enumerate(tensors)))
        return tensors


class Compiler:
    def __init__(self, spec: ModelSpec, core: ov.Core, precision: InferencePrecision, threads: int) -> None:
        self.spec = spec
        self.precision = precision
        self.packing: Packing | None = None  # of matrices; None: they are held in `precision`
        self._threads = threads
        self._core = core
        self._checkpoint = open_checkpoint(spec.weights, spec.others)
        self._scratches: WeakSet[Scratch] = WeakSet()  # of the graphs in use
        self._housekeeping = Housekeeping("releasing the pages of a checkpoint")

    @property
    def weights(self) -> Iterable[Weight]:
        return self._checkpoint.values()

    @property
    def is_exact(self) -> bool:
        """Whether the plans compute in float32 with the checkpoint's own weights."""
        return self.precision == "f32" and self.packing is None

    @contextmanager
    def releasing(self) -> Iterator[None]:
        """Release pages every RELEASE_S while constants are made or laid out, so that they are not in memory twice."""
        done = threading.Event()

        def release() -> None:
            while not done.wait(RELEASE_S):
                self._housekeeping.run(self._release_pages)

        thread = threading.Thread(target=release, name="openvino-release", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    @property
    def plan_bytes(self) -> int:
        """The approximate size of a plan's own copy of the weights, without the table of word vectors."""
        sizes = [prod(weight.shape) for weight in self._checkpoint.values()]
        bits = {"bf16": 16, "f32": 32}[self.precision] if self.packing is None else self.packing.bits
        return (sum(sizes) - max(sizes, default=0)) * bits // 8

    def compile(self, streams: int, groups: int, precision: InferencePrecision | None = None) -> Plan:
        """Return a plan with all outputs of the model: computing all of them costs little more than the body. Blocks.

        precision: replaces the model's own precision and packing.
        """
        packing = self.packing if precision is None else None
        bfloat16 = (precision or self.precision) == "bf16"
        ops = OpenvinoOps(bfloat16=bfloat16) if packing is None else PackedWeightsOps(packing, bfloat16=bfloat16)
        self._scratches.add(ops.scratch)
        with self.releasing():
            graph = self.graph(ops, groups)
            return Plan(self.compile_model(graph.model, streams, precision, packing), graph, ops, streams)

    def graph(self, ops: OpenvinoOps, groups: int) -> OpenvinoGraph:
        network = Network(self.spec, self._checkpoint, ops)
        width = self.spec.feature_width
        return build(
            lambda tokens: network(tokens, self.spec.outputs),
            groups,
            by_token=self.spec.outputs - POOLED,
            features=np.zeros((0, width), np.float32 if self.spec.processor is None else np.uint8) if width else None,
            coordinates=self.spec.coordinates or 0,
        )

    def compile_model(
        self, model: ov.Model, streams: int, precision: InferencePrecision | None = None, packing: Packing | None = None
    ) -> ov.CompiledModel:
        """precision: replaces the model's own. packing: of the matrices in `model`."""
        config = {
            "INFERENCE_PRECISION_HINT": precision or self.precision,
            "NUM_STREAMS": streams,
            "INFERENCE_NUM_THREADS": self._threads,
            "ENABLE_CPU_PINNING": False,  # no faster here, and it would pin two servers to the same processors
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": packing.group if packing is not None and packing.rounds_inputs else 0,
        }
        compiled = self._core.compile_model(model, "CPU", config)
        self.release()
        return compiled

    def release(self) -> None:
        """Free the heap's free pages, and those of the checkpoint that compiling and a plan's first batch read."""
        self._housekeeping.run(self._release_pages)  # the system refuses it for pages locked in memory
        trim_heap()

    def _release_pages(self) -> None:
        self._checkpoint.release()
        for scratch in list(self._scratches):
            scratch.release()

    def close(self) -> None:
        self._checkpoint.close()
