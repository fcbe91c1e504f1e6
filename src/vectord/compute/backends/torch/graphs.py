"""CUDA graphs of small batches, whose kernels take longer to launch than to run.

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
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from vectord.checkpoints.spec import Output
from vectord.compute.backends.base import POOLED
from vectord.compute.ops.base import PackedTexts
from vectord.compute.ops.torch.flat import FlatShape, fill

logger = logging.getLogger(__name__)

TOKENS = (2048, 1024, 512, 256, 128, 64, 32, 16)  # beyond, kernels run longer than their launches take
SHORT = 128  # texts up to this are one block of rows of the attention kernel
MOST_PADDING = 4  # a shape has at most this many times the tokens of its batch

Program: TypeAlias = Callable[[], Mapping[Output, Tensor]]


@dataclass(frozen=True, slots=True)
class Captured:
    replay: Callable[[], None]  # computes the current inputs again
    answers: Mapping[Output, Tensor]  # where `replay` writes them each time


Capture: TypeAlias = Callable[[Program], Captured]


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


@dataclass(frozen=True, slots=True)
class CudaGraph:
    shape: FlatShape
    numbers: Tensor  # (shape.size,) int32: its input
    captured: Captured

    def run(self, sent: Tensor, outputs: Collection[Output], tokens: int, spans: int) -> dict[Output, Tensor]:
        """Return the outputs without padding. sent: a batch in this graph's shape, with this many tokens and spans."""
        self.numbers.copy_(sent)
        self.captured.replay()
        rows = {output: spans if output in POOLED else tokens for output in outputs}
        return {output: self.captured.answers[output][:count].clone() for output, count in rows.items()}


class Graphs:
    """The graphs of one model, sorted by shape."""

    def __init__(self, graphs: Sequence[CudaGraph] = ()) -> None:
        self._graphs = sorted(graphs, key=lambda graph: (graph.shape.tokens, graph.shape.longest))

    def __len__(self) -> int:
        return len(self._graphs)

    def find(self, shape: FlatShape) -> CudaGraph | None:
        """Return the smallest graph that holds a batch of this shape; None if it would be mostly padding."""
        largest = max(MOST_PADDING * shape.tokens, TOKENS[-1] * MOST_PADDING)
        fitting = (graph for graph in self._graphs if graph.shape.holds(shape) and graph.shape.tokens <= largest)
        return next(fitting, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLimits:
    """Limits of a load's graphs."""

    memory_bytes: int
    time_s: float


def graph_shapes(longest: int) -> list[FlatShape]:
    """Return the shapes to capture for texts of at most `longest` tokens, largest first.

    Attention starts a block for every 128 rows that a text of the shape may have, so each larger size has two shapes:
    many short texts, and few long ones.
    """
    shapes = []
    for tokens in TOKENS:
        if tokens > SHORT and longest > SHORT:
            shapes.append(_shape(tokens, tokens // 32, min(tokens, longest)))
        shapes.append(_shape(tokens, tokens // 8, min(tokens, SHORT, longest)))
    return shapes


def capture_graphs(
    program_of: Callable[[Tensor, FlatShape], Mapping[Output, Tensor]],
    shapes: Sequence[FlatShape],
    device: torch.device,
    capture: Capture,
    limits: GraphLimits,
    *,
    held_bytes: Callable[[], int],
    now_s: Callable[[], float] = time.monotonic,
) -> Graphs:
    """Return graphs of the first of `shapes`, within the limits of time and memory; failed captures are logged.

    program_of: the network over a batch's numbers in a shape. held_bytes: this process's memory on the device.
    """
    begun_s, begun_bytes = now_s(), held_bytes()
    graphs: list[CudaGraph] = []
    for shape in shapes:
        numbers = _sample(shape).to(device)

        def program(numbers: Tensor = numbers, shape: FlatShape = shape) -> Mapping[Output, Tensor]:
            return program_of(numbers, shape)

        try:
            captured = capture(program)
        except RuntimeError:  # such as out of memory; those batches run without a graph
            logger.warning("a CUDA graph for %d tokens cannot be captured", shape.tokens, exc_info=True)
            break
        taken_bytes = held_bytes() - begun_bytes
        if taken_bytes > limits.memory_bytes:
            logger.info("CUDA graphs stop at %d: the next would take %d MiB in all", len(graphs), taken_bytes >> 20)
            break
        graphs.append(CudaGraph(shape, numbers, captured))
        if now_s() - begun_s > limits.time_s:
            break
    return Graphs(graphs)


def _shape(tokens: int, texts: int, longest: int) -> FlatShape:
    texts = max(4, texts)
    return FlatShape(tokens=tokens, texts=texts, spans=texts, longest=longest)


def _sample(shape: FlatShape) -> Tensor:
    """As many whole texts of the maximum length as fit."""
    count = max(1, min(shape.texts, shape.tokens // shape.longest))
    numbers = np.empty(shape.size, np.int32)
    fill(PackedTexts.of([np.zeros(shape.longest, np.int32)] * count), shape, numbers)
    return torch.from_numpy(numbers)
