"""Whether a loaded network computes a text in the same way alone and in a batch: `is_batch_invariant`.

Backends call it at load, for networks that others have written: some change attention or positions for the whole batch,
let tokens read padding, share a quantization scale, or change themselves for good. Then a text's vector would depend on
the texts of other clients, and the cache would keep it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

import numpy as np

from vectord.checkpoints.spec import ModelSpec
from vectord.compute.backends.base import POOLED, Answers, PackedTexts, TokenBatch
from vectord.schema import Float32, Int32

TOLERANCE = 1e-3  # of the distance between two outputs, relative to their length
SHORT_TOLERANCE = 0.03  # for numbers of 16 bits
PROBED_LIMIT = 1024  # a longer limit is not probed: the load would take minutes
_SHORT, _LONG = 5, 64  # tokens

Forward: TypeAlias = Callable[[TokenBatch], Answers]


def is_batch_invariant(forward: Forward, spec: ModelSpec, limits: Collection[int], tolerance: float) -> bool:
    """Return whether texts have the same outputs alone, in any order, and together.

    limits: lengths at which the network may change; texts around each one are compared.
    """
    words, padding = spec.config.get("vocab_size"), spec.config.get("pad_token_id")
    words = words if type(words) is int and words > 1 else 2
    most = min(PROBED_LIMIT, spec.max_tokens - 1)
    groups = [{_SHORT, _LONG}]
    groups += [{_SHORT, limit, limit + 1, limit * 5 // 4} for limit in sorted(limits) if _SHORT < limit <= most]
    with contextlib.suppress(MemoryError):  # no batch of these lengths can run
        for lengths in groups:
            texts = []
            for length in sorted({min(length, spec.max_tokens) for length in lengths}):
                ids = (np.arange(length, dtype=np.int32) * 7 + 3) % words
                ids[ids == padding] = 1 if padding == 0 else 0
                texts.append(ids)
            if not _are_invariant(forward, spec, texts, tolerance):
                return False
    return True


def _are_invariant(forward: Forward, spec: ModelSpec, texts: Sequence[Int32], tolerance: float) -> bool:
    up, down = [*range(len(texts))], [*range(len(texts))][::-1]
    found: list[list[list[Float32]]] = [[] for _ in texts]  # of each text, its outputs in each batch
    for batch in (*([i] for i in up), *([i] for i in down), up, down):
        bounds = np.cumsum([0, *(len(texts[i]) for i in batch)], dtype=np.int32)
        ids = np.concatenate([texts[i] for i in batch])
        packed = PackedTexts(ids=ids, type_ids=np.zeros_like(ids), cu_seqlens=bounds)
        answers = forward(TokenBatch(texts=packed, outputs=spec.outputs))
        split = [list(rows) if output in POOLED else np.split(rows, bounds[1:-1]) for output, rows in answers.items()]
        for i, *outputs in zip(batch, *split, strict=True):
            found[i].append(outputs)
    return all(
        float(np.linalg.norm(rows - alone)) <= tolerance * max(1.0, float(np.linalg.norm(alone)))
        for first, *others in found
        for outputs in others
        for alone, rows in zip(first, outputs, strict=True)
    )
