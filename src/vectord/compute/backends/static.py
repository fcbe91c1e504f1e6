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
from vectord.schema import Float32, Int32

MAX_BATCH_TOKENS = 8_192
QUICK_NUMBERS = 2**20  # of a batch's rows: 1 ms
CACHED_NUMBERS = 2**17  # of rows that are copied together: 512 KiB
# With fewer than MANY_SPANS spans, a step for each span is faster than one for each row. So it is for the FEW_SPANS
# longest ones, and if a step would add fewer than STEP_SPANS rows on average.
MANY_SPANS, FEW_SPANS, STEP_SPANS = 128, 16, 32


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
        ids = texts.ids
        starts, stops = (texts.cu_seqlens[:-1], texts.cu_seqlens[1:]) if texts.spans is None else texts.spans.T
        if self._unknown_id is not None:
            known = ids != self._unknown_id  # (T,)
            if np.count_nonzero(known) < len(ids):  # `all` takes several times as long for few
                before = np.append(0, np.cumsum(known))
                ids, starts, stops = ids[known], before[starts], before[stops]
        counts = stops - starts
        sums = self._sums_of_many if len(counts) >= MANY_SPANS else self._sums
        vectors = sums(ids, starts, counts)
        vectors /= np.maximum(counts, 1, dtype=np.float32)[:, None]
        if self._bend:
            alpha, beta, bias = self._bend
            vectors = beta * np.tanh(alpha * vectors + bias)
        return {"dense": vectors}

    def _sums(self, ids: Int32, starts: Int32, counts: Int32) -> Float32:
        """The sum of each span's rows, added in order. (M, D)"""
        spans = [*zip(starts.tolist(), counts.tolist(), strict=True)]
        first, stop, half = spans[0][0], sum(spans[-1]), len(spans) // 2
        if half and (stop - first) * self._table.shape[1] > CACHED_NUMBERS:
            parts = slice(0, half), slice(half, None)
            return np.concatenate([self._sums(ids, starts[part], counts[part]) for part in parts])
        rows = self._rows_of(ids[first:stop])
        sums = np.empty((len(spans), rows.shape[1]), np.float32)
        for total, (start, count) in zip(sums, spans, strict=True):
            # reduceat and one sparse product are slower.
            np.add.reduce(rows[start - first : start - first + count], axis=0, out=total)
        return sums

    def _sums_of_many(self, ids: Int32, starts: Int32, counts: Int32) -> Float32:
        """The same numbers, as fast or faster: the first rows of all spans, then their second rows, and so on. The sums
        stay in the processor's cache."""
        order = np.argsort(-counts, kind="stable")  # longest first
        shared = int(counts[order[FEW_SPANS]])  # more than FEW_SPANS spans have so many rows
        if counts.sum() < STEP_SPANS * shared:
            return self._sums(ids, starts, counts)
        starts, counts = starts[order], counts[order]
        ordered = np.zeros((len(counts), self._table.shape[1]), np.float32)
        longer = len(counts) - np.searchsorted(counts[::-1], np.arange(shared), side="right")
        for row, spans in enumerate(longer.tolist()):
            ordered[:spans] += self._rows_of(ids[starts[:spans] + row])
        longest = ordered[:FEW_SPANS], starts[:FEW_SPANS].tolist(), counts[:FEW_SPANS].tolist()
        for each, start, count in zip(*longest, strict=True):
            rest = self._rows_of(ids[start + shared : start + count])
            np.add.reduce(np.concatenate((each[None], rest)), axis=0, out=each)
        sums = np.empty_like(ordered)
        sums[order] = ordered
        return sums

    def _rows_of(self, ids: Int32) -> Float32:
        """The weighted row of each token: (T, D), a copy."""
        rows = ids if self._rows is None else self._rows[ids]
        taken = self._table.take(rows, axis=0).astype(np.float32, copy=False)
        if self._weights is not None:
            taken *= self._weights[ids, None]
        return taken

    def close(self) -> None:
        self._table = self._table[:0].copy()
        self._tensors.close()


def _numbers(weight: Weight | None, dtype: type[np.generic]) -> npt.NDArray[Any] | None:
    return None if weight is None else weight.array.astype(dtype)
