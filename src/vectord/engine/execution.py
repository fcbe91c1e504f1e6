"""Run one batch so that every text gets its own row or its own error. Blocks; called by the worker's threads.

    whole batch ── MemoryError ──> two halves, down to one text, which then fails with OutOfMemory
        │
        ├───────── any other Exception ──> text by text: one poison text fails alone
        │
        └── rows ── a row with a number that is not finite ──> that text fails, the others stand

What is no Exception (SystemExit) passes through and ends the thread: worker.py answers for it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from vectord.backends.base import Backend, TokenBatch
from vectord.engine.batch import Batch, Item, Output
from vectord.errors import InferenceFailed, OutOfMemory
from vectord.schema import Float32

logger = logging.getLogger("vectord.engine")

Answer: TypeAlias = Float32 | InferenceFailed  # dense: (D,); tokens: (n, H)


class Execution:
    """Runs batches of one model, whose dense rows are `dimensions` wide. All of the worker's threads share it."""

    def __init__(self, backend: Backend, dimensions: int) -> None:
        self._backend = backend
        self._dimensions = dimensions

    def run(self, batch: Batch, stream: int) -> list[Answer]:
        """One answer an item, in order. Never raises an Exception."""
        return self._run(batch.items, batch.output, stream, batch.alone)

    def _run(self, items: Sequence[Item], output: Output, stream: int, alone: bool) -> list[Answer]:
        try:
            tokens = pack(items, output, alone)
            rows = self._backend.forward(tokens, stream)
            self._check_shape(rows, tokens)
            return _split(rows, tokens)
        except MemoryError as cause:
            if len(items) == 1:
                logger.error("out of memory with one text of %d tokens", items[0].tokens, exc_info=cause)
                return [_failure(OutOfMemory("The device has no room for this text."), cause)]
            logger.warning("out of memory with %d texts: trying halves", len(items))
            middle = len(items) // 2
            parts: Sequence[Sequence[Item]] = (items[:middle], items[middle:])
        except Exception as cause:  # the device's library may raise anything
            if len(items) == 1:
                logger.error("a text of %d tokens failed", items[0].tokens, exc_info=cause)
                return [_failure(InferenceFailed("The model failed on this text."), cause)]
            logger.warning("a batch of %d texts failed: trying them one by one", len(items), exc_info=cause)
            parts = [(item,) for item in items]
        return [answer for part in parts for answer in self._run(part, output, stream, False)]

    def _check_shape(self, rows: Float32, batch: TokenBatch) -> None:
        """A row too few would give every text behind it the row of another."""
        expected = (len(batch.cu_seqlens) - 1, self._dimensions) if batch.output == "dense" else (len(batch.ids), -1)
        if rows.ndim != 2 or rows.shape[0] != expected[0] or expected[1] not in {-1, rows.shape[1]}:
            raise ValueError(f"expected rows of shape {expected}, got {rows.shape}")


def pack(items: Sequence[Item], output: Output, alone: bool) -> TokenBatch:
    """All tokens of all items end to end."""
    cu_seqlens = np.zeros(len(items) + 1, np.int32)
    np.cumsum([item.tokens for item in items], out=cu_seqlens[1:])
    return TokenBatch(
        ids=np.concatenate([item.ids for item in items]),
        type_ids=np.concatenate([item.type_ids for item in items]),
        cu_seqlens=cu_seqlens,
        output=output,
        alone=alone,
    )


def _split(rows: Float32, batch: TokenBatch) -> list[Answer]:
    """Each text's part of what the backend gave, copied where it would keep the whole batch in memory."""
    parts = list(rows) if batch.output == "dense" else [part.copy() for part in np.split(rows, batch.cu_seqlens[1:-1])]
    if np.isfinite(rows).all():
        return list(parts)
    return [part if np.isfinite(part).all() else _not_finite() for part in parts]


def _failure(error: InferenceFailed, cause: BaseException) -> InferenceFailed:
    error.__cause__ = cause  # for the log of whoever has the request id; the client sees the message alone
    return error


def _not_finite() -> InferenceFailed:
    logger.error("a text's answer was not finite")
    return InferenceFailed("The model's answer for this text is not finite.")
