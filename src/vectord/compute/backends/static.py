"""Dense vectors of static models: the mean of a table's rows, one row per token. Serves nothing else.

The table stays in the file's dtype (bfloat16 becomes float32), memory-mapped, so that only rows that occur are read.
Sums are computed in float32.
Source: model2vec's `StaticModel.encode`, sentence-transformers' `StaticEmbedding`, RikkaBotan's `SSE`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vectord.checkpoints.checkpoint import open_checkpoint
from vectord.checkpoints.files.weight import Weight
from vectord.checkpoints.spec import ModelSpec
from vectord.compute.backends.base import Answers, Backend, BackendFacts, BackendOptions, TokenBatch
from vectord.compute.processor import thread_budget
from vectord.errors import ModelUnavailable

MAX_BATCH_TOKENS = 4_096  # a batch's rows are copied: 16 MiB with 1,024 dimensions
QUICK_NUMBERS = 2**20  # of a batch's rows: 1 ms


def load(spec: ModelSpec, options: BackendOptions) -> StaticBackend:
    """Map the table. Raises ModelUnavailable: another kind of model, or a mapping to rows that do not exist."""
    if spec.static is None or spec.dense_modules:
        raise ModelUnavailable("backend static: it serves static models only, without Dense modules")
    return StaticBackend(spec, options)


class StaticBackend(Backend):
    """Any number of threads may call `forward` at once; numpy releases the GIL for large texts."""

    def __init__(self, spec: ModelSpec, options: BackendOptions) -> None:
        assert spec.static is not None
        self._tensors = open_checkpoint(spec.weights)
        table = self._tensors[spec.static.tensor]
        # numpy has no bfloat16.
        self._table: npt.NDArray[np.generic] = table.as_float32() if table.dtype == "BF16" else table.array
        self._rows = _numbers(self._tensors.get("mapping"), np.int64)
        self._weights = _numbers(self._tensors.get("weights"), np.float32)
        self._unknown_id = spec.static.unknown_id
        names = ("alpha", "beta", "bias") if spec.static.bends else ()
        self._bend = tuple(self._tensors[f"dyt.{name}"].as_float32() for name in names)  # (D,) each
        if self._rows is not None and not (0 <= self._rows.min() <= self._rows.max() < len(self._table)):
            raise ModelUnavailable(f"{spec.weights[0]}: mapping names rows outside the table of {len(self._table):,}")
        self.facts = BackendFacts(
            name="static",
            device="cpu",
            dtype=self._table.dtype.name,
            streams=options.streams or options.threads or thread_budget(),
            cost="packed",
            max_batch_tokens=options.max_batch_tokens or MAX_BATCH_TOKENS,
            quick_tokens=QUICK_NUMBERS // self._table.shape[1],
        )

    def forward(self, batch: TokenBatch, stream: int) -> Answers:
        """See Backend.forward. A span without a known token gives zeros, as the libraries do."""
        return self.forward_exact(batch)

    def forward_exact(self, batch: TokenBatch) -> Answers:
        texts = batch.texts
        rows = texts.ids if self._rows is None else self._rows[texts.ids]
        part = self._table.take(rows, axis=0).astype(np.float32, copy=False)  # (T, D): a copy
        if self._weights is not None:
            part *= self._weights[texts.ids, None]
        starts, stops = (texts.cu_seqlens[:-1], texts.cu_seqlens[1:]) if texts.spans is None else texts.spans.T
        counts = stops - starts
        if self._unknown_id is not None:
            unknown = texts.ids == self._unknown_id  # (T,)
            if np.count_nonzero(unknown):  # `any` takes several times as long for few
                part[unknown] = 0
                sums = np.cumsum(np.append(0, unknown))
                counts = counts - (sums[stops] - sums[starts])
        vectors = np.empty((len(counts), part.shape[1]), np.float32)
        for vector, start, stop in zip(vectors, starts.tolist(), stops.tolist(), strict=True):
            np.add.reduce(part[start:stop], axis=0, out=vector)  # reduceat and one sparse product are slower
        vectors /= np.maximum(counts, 1, dtype=np.float32)[:, None]
        if self._bend:
            alpha, beta, bias = self._bend
            vectors = beta * np.tanh(alpha * vectors + bias)
        return {"dense": vectors}

    def close(self) -> None:
        self._table = self._table[:0].copy()
        self._tensors.close()


def _numbers(weight: Weight | None, dtype: type[np.generic]) -> npt.NDArray[Any] | None:
    return None if weight is None else weight.array.astype(dtype)
