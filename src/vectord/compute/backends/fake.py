"""Deterministic vectors from token ids: no weights, no device. For `--backend fake`, and most of the tests.

Serves any ModelSpec with all its outputs in their true dimensions, so that clients, routes and load tools can be tried
without a model. A text has the same answers alone and in any batch; different texts have unrelated ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from vectord.checkpoints.spec import ModelSpec, Output
from vectord.compute.backends.base import (
    POOLED,
    Answers,
    Backend,
    BackendFacts,
    BackendOptions,
    TokenBatch,
    max_batch_texts,
)
from vectord.compute.networks.facts import size
from vectord.compute.ops.base import PackedTexts
from vectord.compute.ops.groups import positions
from vectord.schema import Float32, Int32

MAX_BATCH_TOKENS = 16_384
BLOCK_ROWS = 32  # computed at a time, so that they stay in the processor's cache

UInt64 = npt.NDArray[np.uint64]


def load(spec: ModelSpec, options: BackendOptions) -> FakeBackend:
    """Return a fake with this model's dimensions. Opens no file; the options streams and max_batch_tokens apply."""
    return FakeBackend(
        spec.widths | ({"splade": size(spec.config, "vocab_size")} if "splade" in spec.outputs else {}),
        streams=options.streams or 1,
        max_batch_tokens=options.max_batch_tokens or MAX_BATCH_TOKENS,
        max_batch_texts=max_batch_texts(spec),
    )


class FakeBackend(Backend):
    """Hashes instead of a network. Any number of threads may call `forward` at once."""

    def __init__(
        self,
        widths: Mapping[Output, int],
        *,
        streams: int = 1,
        max_batch_tokens: int = MAX_BATCH_TOKENS,
        max_batch_texts: int | None = None,
    ) -> None:
        """widths: the second dimension of each output of the model."""
        self.facts = BackendFacts(
            name="fake",
            device="cpu",
            dtype="float32",
            streams=streams,
            cost="packed",
            max_batch_tokens=max_batch_tokens,
            max_batch_texts=max_batch_texts,
        )
        self._widths = dict(widths)

    def forward(self, batch: TokenBatch, stream: int) -> Answers:
        assert 0 <= stream < self.facts.streams, "no such stream"
        return self.forward_exact(batch)

    def forward_exact(self, batch: TokenBatch) -> Answers:
        assert len(batch.texts.cu_seqlens) > 1, "an empty batch"
        answers = {}
        texts = batch.texts
        for output in batch.outputs:
            if output in POOLED:
                rows = _keys(_spans(texts))  # (M,)
            else:
                rows = np.repeat(_keys(_texts(texts)), np.diff(texts.cu_seqlens))  # (T,)
                rows = _mix(rows + positions(texts).astype(np.uint64) + np.uint64(1))
            numbers = _numbers(rows, self._widths[output])
            answers[output] = np.abs(numbers) if output == "lexical" else numbers
        return answers


def _texts(texts: PackedTexts) -> list[Int32]:
    """Each text's ids, after its parent's, and its features after its ids."""
    own = [texts.ids[start:stop] for start, stop in pairwise(texts.cu_seqlens.tolist())]
    if texts.features is not None:
        features = np.split(np.ascontiguousarray(texts.features).view(np.uint8), texts.cu_seqlens[1:-1])
        both = zip(own, features, strict=True)
        return [np.concatenate([ids, rows.ravel()]) if rows.any() else ids for ids, rows in both]
    if texts.parents is None:
        return own
    return [
        ids if parent < 0 else np.concatenate([own[parent], ids])
        for ids, parent in zip(own, texts.parents, strict=True)
    ]


def _spans(texts: PackedTexts) -> list[Int32]:
    """The input of each span's hash: all ids of its text, and its place there if it is not the whole text."""
    whole = _texts(texts)
    if texts.spans is None:
        return whole
    text = np.searchsorted(texts.cu_seqlens, texts.spans[:, 0], side="right") - 1
    starts, stops = texts.cu_seqlens[text], texts.cu_seqlens[text + 1]
    return [
        whole[i]
        if (first, last) == (start, stop)
        else np.concatenate([whole[i], np.array([first - start, last - start], np.int32)])
        for i, (first, last), start, stop in zip(text, texts.spans, starts, stops, strict=True)
    ]


def _keys(texts: list[Int32]) -> UInt64:
    """A hash of the ids of each text. (N,)"""
    return np.frombuffer(b"".join([blake2b(ids.tobytes(), digest_size=8).digest() for ids in texts]), "<u8")


def _numbers(keys: UInt64, width: int) -> Float32:
    """A row of numbers for each key, of a norm of about 1. (N, width)"""
    numbers = np.empty((len(keys), width), np.float32)
    steps = np.arange(1, width + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for start in range(0, len(keys), BLOCK_ROWS):
        bits = _mix(keys[start : start + BLOCK_ROWS, None] + steps)
        bits >>= np.uint64(11)
        uniform = bits.astype(np.float64)
        uniform *= 2.0**-52
        uniform -= 1.0  # -1 to 1
        uniform *= np.sqrt(3.0 / width)
        numbers[start : start + BLOCK_ROWS] = uniform
    return numbers


def _mix(x: UInt64) -> UInt64:
    """The output step of SplitMix64 (Steele, Lea and Flood 2014): near numbers become unrelated ones. Changes `x`."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x
