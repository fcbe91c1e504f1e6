"""Backends that misbehave on demand: vectord's own fake, and one failure at a time on top of it."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from vectord.compute.backends.base import POOLED, Answers, TokenBatch
from vectord.compute.backends.fake import FakeBackend
from vectord.compute.ops.base import PackedTexts


class ScriptedBackend(FakeBackend):
    """A FakeBackend for dense and token vectors that fails on request and records every batch.

    raise_on, nan_on, kill_on: a token id. A batch with this id raises RuntimeError, has NaN in that text's outputs,
    or ends the worker's thread (SystemExit). memory_tokens: a batch with more tokens raises MemoryError. blocked:
    `forward` waits until `release` is called. error: raised by every forward pass.
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
        widths = {"dense": dimensions, "tokens": hidden_size}
        super().__init__(widths, streams=streams, max_batch_tokens=max_batch_tokens)
        self.batches: list[TokenBatch] = []
        self.closed = False
        self.error = error
        self._raise_on = raise_on
        self._nan_on = nan_on
        self._kill_on = kill_on
        self._memory_tokens = memory_tokens
        self._gate = threading.Event()
        if not blocked:
            self._gate.set()

    def forward(self, batch: TokenBatch, stream: int) -> Answers:
        self.batches.append(batch)
        assert self._gate.wait(timeout=30), "a test left the backend blocked"
        if self.error is not None:
            raise self.error
        ids = batch.texts.ids
        if self._memory_tokens is not None and ids.size > self._memory_tokens:
            raise MemoryError("the fake device is full")
        if self._raise_on in ids:
            raise RuntimeError("the fake device failed")
        if self._kill_on in ids:
            raise SystemExit
        answers = super().forward(batch, stream)
        for output, rows in answers.items():
            hit = _texts_with(self._nan_on, batch.texts)
            rows[hit if output in POOLED else np.repeat(hit, np.diff(batch.texts.cu_seqlens))] = np.nan
        return answers

    def close(self) -> None:
        self.closed = True

    def block(self) -> None:
        """From now on forwards wait."""
        self._gate.clear()

    def release(self) -> None:
        """Let waiting and coming forwards through."""
        self._gate.set()


def _texts_with(token: int | None, texts: PackedTexts) -> npt.NDArray[np.bool_]:
    """Whether each text holds `token`. (N,)"""
    return np.array([token in ids for ids in np.split(texts.ids, texts.cu_seqlens[1:-1])])
