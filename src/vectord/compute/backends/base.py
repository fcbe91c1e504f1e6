"""The interface between engine and devices: load a ModelSpec, run packed batches of it.

A backend knows no request, no queue and no tokenizer. `forward` is called by the device's worker threads, at most
`facts.streams` at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias

import msgspec
import numpy as np

from vectord.checkpoints.spec import ModelSpec, Output
from vectord.compute.networks.facts import size
from vectord.compute.ops.base import PackedTexts
from vectord.schema import DeviceMemory, Float32, Gpu

__all__ = ["Answers", "Backend", "BackendFacts", "BackendOptions", "LoadBackend", "PackedTexts", "TokenBatch"]

ANSWER_LIMIT_BYTES = 32 * 2**20  # of one output of one batch, where each text's output is as wide as the vocabulary
# One row per span; the other outputs have one row per token.
POOLED: frozenset[Output] = frozenset({"dense", "splade", "scores", "markers"})


class TextLimit(msgspec.Struct, frozen=True):
    """The most texts in a forward, for models of at most `max_tokens` on a device with more than `above_gib` GiB."""

    max_tokens: int
    above_gib: int
    texts: int


class BackendOptions(msgspec.Struct, frozen=True, kw_only=True):
    device: str = "auto"  # auto, cpu, cuda, cuda:N, mps; of several devices each has options of its own
    sharers: int = 1  # how many models share that device, this one included
    dtype: str = "auto"  # auto, float32, bfloat16, float16, int8, fp8
    threads: int | None = None  # None: from cgroup quota and affinity, rounded down
    streams: int | None = None  # None: chosen by the backend from the threads
    max_batch_tokens: int | None = None  # None: the backend's measured optimum
    tf32: bool = False  # CUDA: float32 products in TF32
    device_memory_mib: int | None = None  # CUDA: limit for this process; None: all of it
    graph_memory_mib: int = 512  # CUDA: for the graphs of one model; 0: none
    capacity_s: float = 10.0  # CUDA: for the warm-up that finds max_batch_tokens; 0: none
    text_limits: tuple[TextLimit, ...] = ()  # CUDA: the first one that applies limits the texts per forward


class BackendFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a loaded model that the scheduler and `/info` need."""

    name: str
    device: str
    dtype: str
    streams: int  # forwards that may run at once
    cost: Literal["packed", "padded"]  # of a batch: packed: its tokens; padded: its longest text times its texts
    max_batch_tokens: int  # the limit of that cost
    max_batch_texts: int | None = None  # None: no limit
    quick_tokens: int = 0  # a batch of so many takes about 1 ms: the event loop runs it, alongside busy streams
    pipelined: bool = False  # streams prepare batches concurrently, and the device runs them one by one
    gpu: Gpu | None = None  # None: the device is no GPU, or an unknown one


class TokenBatch(msgspec.Struct, frozen=True, kw_only=True):
    """N texts end to end and the requested outputs. Parents get outputs too, which the engine ignores."""

    texts: PackedTexts
    outputs: frozenset[Output]  # some of the model's
    alone: bool = False  # nothing else runs or is queued: the whole device may work on this batch


Answers: TypeAlias = dict[Output, Float32]  # each requested output's array; shapes: checkpoints/spec.py, Output

FAULTS = (ArithmeticError, AssertionError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)


class Backend(Protocol):
    facts: BackendFacts
    # What a failed forward raises. A lone call of the library raises anything else: its caller's signal handlers did.
    faults: tuple[type[Exception], ...] = FAULTS

    def forward(self, batch: TokenBatch, stream: int) -> Answers:
        """Blocks. Returns the requested outputs only.

        stream: 0 <= stream < facts.streams; two threads never share one at a time. Raises MemoryError when the
        device has no room for the batch; anything else means this batch failed.
        """

    def forward_exact(self, batch: TokenBatch) -> Answers:
        """`forward` in float32, for outputs that are not finite in fewer bits. Slow at first; one thread at a time."""

    def renew(self, stream: int) -> None:
        """Let another thread use a stream whose forward hangs and may never end. Blocks; other streams continue."""
        return

    def free_memory(self) -> None:
        """Free what large batches needed and the next one may not. Other forwards may be running."""
        return

    def close(self) -> None:
        """Free everything. No forward may be running or follow."""
        return

    def device_memory(self) -> DeviceMemory | None:
        """The memory of its device; None: not available for this device. Any thread; takes no time."""
        return None


# Every other module of this folder has a function `load` of this type.
LoadBackend: TypeAlias = Callable[[ModelSpec, BackendOptions], Backend]


def max_batch_texts(spec: ModelSpec) -> int | None:
    """Return the maximum texts of a batch so that no output exceeds ANSWER_LIMIT_BYTES. Raises ModelUnavailable."""
    if "splade" not in spec.outputs:
        return None
    row_bytes = size(spec.config, "vocab_size") * np.dtype(np.float32).itemsize
    return max(1, ANSWER_LIMIT_BYTES // row_bytes)
