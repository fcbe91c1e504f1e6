"""CUDA graphs of the batches whose kernels take longer to launch than to run (capacity.py measures up to which size).

Graphs are captured at load for a few shapes, largest first, so that smaller ones reuse the memory of larger ones. A
graph computes all outputs of the model, and only the requested ones are copied out. A batch uses the smallest shape
that holds it. A Capture makes the graph, so that tests run everything except CudaCapture on the processor.
Nothing is captured after load. Graphs of one model share memory and must never run at once: slot.py's single kernel
stream and the backend's lock ensure that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, TypeAlias

import msgspec
import numpy as np
import torch
from torch import Tensor

from vectord.checkpoints.spec import Output
from vectord.compute.backends.base import POOLED
from vectord.compute.ops.base import PackedTexts
from vectord.compute.ops.torch.flat import FlatShape, fill

logger = logging.getLogger(__name__)

TOKENS = (16_384, 8192, 4096, 2048, 1024, 512, 256, 128, 64, 32, 16)
UNMEASURED_TOKENS = 2048  # the largest graph if the load measures nothing
SHORT = 128  # texts up to this are one block of rows of the attention kernel
MOST_PADDING = 4  # a shape has at most this many times the tokens of its batch

Program: TypeAlias = Callable[[], Mapping[Output, Tensor]]


class Captured(msgspec.Struct, frozen=True):
    replay: Callable[[], None]  # computes the current inputs again
    answers: Mapping[Output, Tensor]  # where `replay` writes them each time


class Capture(Protocol):
    """Makes the graphs of one model."""

    def __call__(self, program: Program) -> Captured:
        """Raises RuntimeError if the program cannot be captured."""

    def held_bytes(self) -> int:
        """Return the device's memory that the captured graphs hold."""


class CudaCapture:
    """Captures on the kernel stream; all graphs share one memory pool."""

    def __init__(self, kernels: torch.cuda.Stream) -> None:
        self._kernels = kernels
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, program: Program) -> Captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self._kernels.device):
            with torch.cuda.stream(self._kernels):
                program()  # the first call of a library, which may allocate workspace, must not be captured
            # thread_local: the threads of other models allocate memory meanwhile.
            with torch.cuda.graph(graph, self._pool, self._kernels, capture_error_mode="thread_local"):
                answers = program()
        return Captured(graph.replay, answers)

    def held_bytes(self) -> int:
        """See Capture.held_bytes. Of the pool alone: other models and programs allocate at the same time."""
        segments = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        return sum(each["total_size"] for each in segments if each.get("segment_pool_id") == self._pool)


class CudaGraph(msgspec.Struct, frozen=True):
    shape: FlatShape
    numbers: Tensor  # (shape.size,) int32: its input
    captured: Captured

    def run(self, filled: Tensor, outputs: Collection[Output], batch: FlatShape) -> dict[Output, Tensor]:
        """Return the outputs without padding. filled: a batch of shape `batch` in this graph's shape, on the host.

        The stream of the kernels copies it, after earlier batches of the graph: one copy, and nothing to wait for.
        """
        self.numbers.copy_(filled, non_blocking=True)
        self.captured.replay()
        answers = without_padding({output: self.captured.answers[output] for output in outputs}, batch)
        return {output: answer.clone() for output, answer in answers.items()}


def without_padding(answers: Mapping[Output, Tensor], batch: FlatShape) -> dict[Output, Tensor]:
    return {output: answer[: batch.spans if output in POOLED else batch.tokens] for output, answer in answers.items()}


class Graphs:
    def __init__(self, graphs: Sequence[CudaGraph] = ()) -> None:
        self._graphs = sorted(graphs, key=lambda graph: (graph.shape.tokens, graph.shape.longest, graph.shape.texts))

    def __len__(self) -> int:
        return len(self._graphs)

    def find(self, shape: FlatShape) -> CudaGraph | None:
        """Return the smallest graph that holds a batch of this shape; None if it would be mostly padding."""
        largest = max(MOST_PADDING * shape.tokens, TOKENS[-1] * MOST_PADDING)
        fitting = (graph for graph in self._graphs if graph.shape.holds(shape) and graph.shape.tokens <= largest)
        return next(fitting, None)


def graph_shapes(longest: int, most_tokens: int, *, adapters: bool = False) -> list[FlatShape]:
    """Return the shapes of at most `most_tokens` to capture for texts of at most `longest` tokens, largest first.

    Attention starts a block for every 128 rows that a text of the shape may have, so each larger size has three shapes:
    many short texts, few long ones, and many texts of which any may be long. adapters: whether the model has any.
    """
    shapes = []
    for tokens in TOKENS:
        if tokens > most_tokens:
            continue
        if tokens > SHORT and longest > SHORT:
            shapes.append(_shape(tokens, tokens // 8, min(tokens, longest), adapters))
            shapes.append(_shape(tokens, tokens // 32, min(tokens, longest), adapters))
        shapes.append(_shape(tokens, tokens // 8, min(tokens, SHORT, longest), adapters))
    return shapes


def capture_graphs(
    program_of: Callable[[Tensor, FlatShape], Mapping[Output, Tensor]],
    shapes: Sequence[FlatShape],
    device: torch.device,
    capture: Capture,
    *,
    memory_bytes: int,
    time_s: float,
    now_s: Callable[[], float] = time.monotonic,
) -> Graphs:
    """Return graphs of the first of `shapes`, within these limits of memory and time; failed captures are logged.
    program_of: the network over a batch's numbers in a shape."""
    begun_s = now_s()
    graphs: list[CudaGraph] = []
    for shape in shapes:
        filled = np.empty(shape.size, np.int32)  # as many whole texts of the maximum length as fit
        count = max(1, min(shape.texts, shape.tokens // shape.longest))
        fill(PackedTexts.of([np.zeros(shape.longest, np.int32)] * count), shape, filled)
        numbers = torch.from_numpy(filled).to(device)

        def program(numbers: Tensor = numbers, shape: FlatShape = shape) -> Mapping[Output, Tensor]:
            return program_of(numbers, shape)

        try:
            captured = capture(program)
        except RuntimeError:  # such as out of memory; those batches run without a graph
            logger.warning("a CUDA graph for %d tokens cannot be captured", shape.tokens, exc_info=True)
            break
        taken_bytes = capture.held_bytes()
        if taken_bytes > memory_bytes:
            logger.info("CUDA graphs stop at %d: the next would take %d MiB in all", len(graphs), taken_bytes >> 20)
            break
        graphs.append(CudaGraph(shape, numbers, captured))
        if now_s() - begun_s > time_s:
            break
    return Graphs(graphs)


def _shape(tokens: int, texts: int, longest: int, adapters: bool) -> FlatShape:
    texts = max(4, texts)
    return FlatShape(tokens=tokens, texts=texts, spans=texts, longest=longest, adapters=adapters)
