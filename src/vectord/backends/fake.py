"""Deterministic vectors from token ids alone: no weights, no device. `--backend fake`, and most of the tests.

Serves any ModelSpec with its true dimensions, so that clients, routes and load tools can be tried without a model.
A text has the same vector alone and in any batch; different texts have unrelated ones.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from vectord.artifacts.spec import ModelSpec
from vectord.backends.base import BackendFacts, BackendOptions, TokenBatch
from vectord.schema import Float32

MAX_BATCH_TOKENS = 16_384

UInt64 = npt.NDArray[np.uint64]


def load(spec: ModelSpec, options: BackendOptions) -> FakeBackend:
    """A fake of this model's dimensions. Opens nothing; of the options, streams and max_batch_tokens count."""
    return FakeBackend(
        spec.dimensions,
        spec.hidden_size,
        streams=options.streams or 1,
        max_batch_tokens=options.max_batch_tokens or MAX_BATCH_TOKENS,
    )


class FakeBackend:
    """Hashes instead of a network. Any number of threads may call `forward` at once."""

    def __init__(
        self, dimensions: int, hidden_size: int, *, streams: int = 1, max_batch_tokens: int = MAX_BATCH_TOKENS
    ) -> None:
        self.facts = BackendFacts(
            name="fake",
            device="cpu",
            dtype="float32",
            streams=streams,
            cost="packed",
            max_batch_tokens=max_batch_tokens,
        )
        self._dimensions = dimensions
        self._hidden_size = hidden_size

    def forward(self, batch: TokenBatch, stream: int) -> Float32:
        """dense: (N, dimensions), each about 1 long but not normalised; tokens: (T, hidden_size)."""
        assert 0 <= stream < self.facts.streams, "no such stream"
        assert len(batch.cu_seqlens) > 1, "an empty batch"
        texts = np.split(batch.ids, batch.cu_seqlens[1:-1])
        keys = np.array([_key(ids) for ids in texts], np.uint64)  # (N,)
        if batch.output == "dense":
            return _expand(keys, self._dimensions)
        places = np.concatenate([np.arange(1, len(ids) + 1, dtype=np.uint64) for ids in texts])  # (T,)
        return _expand(_mix(np.repeat(keys, np.diff(batch.cu_seqlens)) + places), self._hidden_size)

    def close(self) -> None:
        """Nothing is held."""


def _key(ids: npt.NDArray[np.int32]) -> int:
    return int.from_bytes(blake2b(np.ascontiguousarray(ids, "<i4").tobytes(), digest_size=8).digest(), "little")


def _mix(x: UInt64) -> UInt64:
    """The output step of SplitMix64 (Steele, Lea and Flood 2014): near numbers become unrelated ones."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _expand(keys: UInt64, width: int) -> Float32:
    """(M,) keys to (M, width) numbers, uniform, of a spread that makes a row about 1 long."""
    steps = np.arange(1, width + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits = _mix(keys[:, None] + steps)  # (M, width)
    uniform = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0  # -1 to 1
    vectors: Float32 = (uniform * np.sqrt(3.0 / width)).astype(np.float32)
    return vectors
