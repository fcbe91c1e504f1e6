"""Backends that misbehave on demand: vectord's own fake, and one failure at a time on top of it."""

from __future__ import annotations

import threading

import numpy as np

from vectord.backends.base import TokenBatch
from vectord.backends.fake import FakeBackend
from vectord.schema import Float32


class ScriptedBackend(FakeBackend):
    """FakeBackend that fails as told, and records every batch it was given.

    raise_on, nan_on, kill_on: a token id. A batch that holds it raises RuntimeError, has NaN in that text's answer,
    or ends the worker's thread (SystemExit). memory_tokens: more tokens than this in a batch raise MemoryError.
    blocked: forwards wait in `forward` until `release`. error: raised by every forward.
    """

    def __init__(
        self,
        dimensions: int = 8,
        hidden_size: int = 8,
        *,
        streams: int = 1,
        max_batch_tokens: int = 1024,
        raise_on: int | None = None,
        nan_on: int | None = None,
        kill_on: int | None = None,
        memory_tokens: int | None = None,
        error: BaseException | None = None,
        blocked: bool = False,
    ) -> None:
        super().__init__(dimensions, hidden_size, streams=streams, max_batch_tokens=max_batch_tokens)
        self.batches: list[TokenBatch] = []
        self.closed = False
        self.error = error
        self._raise_on = raise_on
        self._nan_on = nan_on
        self._kill_on = kill_on
        self._memory_tokens = memory_tokens
        self._gate = threading.Event()
        self._entered = threading.Semaphore(0)
        if not blocked:
            self._gate.set()

    def forward(self, batch: TokenBatch, stream: int) -> Float32:
        self.batches.append(batch)
        self._entered.release()
        assert self._gate.wait(timeout=30), "a test left the backend blocked"
        if self.error is not None:
            raise self.error
        if self._memory_tokens is not None and batch.ids.size > self._memory_tokens:
            raise MemoryError("the fake device is full")
        if self._raise_on in batch.ids:
            raise RuntimeError("the fake device failed")
        if self._kill_on in batch.ids:
            raise SystemExit
        answer = super().forward(batch, stream)
        if self._nan_on in batch.ids:
            answer[self._rows_with(self._nan_on, batch)] = np.nan
        return answer

    def close(self) -> None:
        self.closed = True

    def block(self) -> None:
        """From now on forwards wait."""
        self._gate.clear()

    def release(self) -> None:
        """Let waiting and coming forwards through."""
        self._gate.set()

    def wait_entered(self, timeout_s: float = 10) -> None:
        """Return when one more forward than last time has begun."""
        assert self._entered.acquire(timeout=timeout_s), "no forward began"

    def _rows_with(self, token: int | None, batch: TokenBatch) -> list[int]:
        """Rows of the answer that belong to texts holding `token`."""
        starts = batch.cu_seqlens[:-1]
        hits = np.flatnonzero(batch.ids == token)
        texts = sorted(set((np.searchsorted(starts, hits, side="right") - 1).tolist()))
        if batch.output == "dense":
            return texts
        return [row for text in texts for row in range(batch.cu_seqlens[text], batch.cu_seqlens[text + 1])]
