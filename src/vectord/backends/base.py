"""The seam between engine and devices: load a ModelSpec, run packed batches of it.

One module of this folder is one backend, and `--backend NAME` names the module. A backend knows no request, no
queue and no tokenizer. `forward` is called by the device's worker threads, at most `facts.streams` at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from vectord.artifacts.spec import ModelSpec
from vectord.schema import Float32

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions:
    device: str = "auto"  # auto, cpu, cuda, cuda:N, mps
    dtype: str = "auto"  # auto, float32, bfloat16, float16
    threads: int | None = None  # None: from cgroup quota and affinity, rounded down
    streams: int | None = None  # None: chosen by the backend from the threads
    max_batch_tokens: int | None = None  # None: the backend's measured best


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendFacts:
    """What the scheduler must know of a loaded model, and what `/info` shows."""

    name: str
    device: str
    dtype: str
    streams: int  # forwards that may run at once
    cost: Literal["packed", "padded"]  # packed: a batch costs its tokens; padded: longest text x texts
    max_batch_tokens: int  # by that cost


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """N texts end to end: all T tokens in one row, nothing padded."""

    ids: Int32  # (T,)
    type_ids: Int32  # (T,)
    cu_seqlens: Int32  # (N + 1,) from 0 to T
    output: Literal["dense", "tokens"] = "dense"
    alone: bool = False  # nothing else runs or waits: the whole device may work on this batch


class Backend(Protocol):
    facts: BackendFacts

    def forward(self, batch: TokenBatch, stream: int) -> Float32:
        """Blocks. dense: (N, D), pooled and projected, not normalised; tokens: (T, H), the last hidden states.

        stream: 0 <= stream < facts.streams; two threads never share one at a time. Raises MemoryError when the
        device has no room for the batch; anything else means this batch failed.
        """
        ...

    def close(self) -> None: ...


class LoadBackend(Protocol):
    """Every module of this folder but this one has a function `load` of this type."""

    def __call__(self, spec: ModelSpec, options: BackendOptions) -> Backend: ...
