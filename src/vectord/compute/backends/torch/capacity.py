"""The number of tokens a forward, found by a short measured warm-up at load.

`measure` runs ever larger batches until the speed stops growing, memory runs short, or the time is up;
`choose_budget` decides by the points. Neither imports torch: a Probe runs the batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
import numpy as np

from vectord.compute.backends.base import TextLimit
from vectord.compute.ops.base import PackedTexts

FIRST_TOKENS = 1024
MOST_TOKENS = 131_072
LEAST_GAIN = 1.05  # gain in tokens per second for twice the tokens: less does not justify twice the latency
SAME_TIME = 1.25  # batches within this factor of the fastest take the time of their launches
GIB = 2**30


class Point(msgspec.Struct, frozen=True):
    """One measured batch."""

    tokens: int
    seconds: float
    peak_bytes: int  # memory of the batch on top of the model's

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


Probe: TypeAlias = Callable[[int], Point]  # runs a batch of this many tokens; raises MemoryError


def measure(
    probe: Probe, room_bytes: int, time_s: float, *, now_s: Callable[[], float] = time.monotonic
) -> list[Point]:
    """Run batches of 1,024 tokens, 2,048 and so on, at least one, until there is a reason to stop."""
    begun_s = now_s()
    points: list[Point] = []
    tokens = FIRST_TOKENS
    while tokens <= MOST_TOKENS:
        try:
            points.append(probe(tokens))
        except MemoryError:
            break
        last, tokens = points[-1], tokens * 2
        if len(points) > 1 and last.tokens_per_s < LEAST_GAIN * points[-2].tokens_per_s:
            break
        # The next takes twice the time and memory of this one.
        if last.peak_bytes * 2 > room_bytes or now_s() - begun_s + 2 * last.seconds > time_s:
            break
    return points


def choose_budget(points: Sequence[Point], room_bytes: int, otherwise: int) -> int:
    """Return the tokens of the last point, in ascending order, that was worthwhile and fits `room_bytes`; a
    proportional part of the first if not even that fits; without points, `otherwise`."""
    if not points:
        return otherwise
    best = points[0]
    if best.peak_bytes > room_bytes:
        return max(1, best.tokens * room_bytes // best.peak_bytes)
    for point in points[1:]:
        if point.peak_bytes > room_bytes or point.tokens_per_s < LEAST_GAIN * best.tokens_per_s:
            break
        best = point
    return best.tokens


def launch_bound(points: Sequence[Point], otherwise: int) -> int:
    """Return the largest number of tokens whose kernels take longer to launch than to run; without points, `otherwise`.
    Up to there a batch takes as long as a smaller one, so that a graph gains even if padding doubles its tokens."""
    least_s = min((point.seconds for point in points), default=0.0)
    return max((point.tokens for point in points if point.seconds <= SAME_TIME * least_s), default=otherwise)


def sample_texts(tokens: int, longest: int, vocabulary: int) -> PackedTexts:
    """Return a batch of exactly this many tokens, in texts of any length up to `longest`; the same each time."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, longest + 1, size=1 + 4 * tokens // longest)
    while lengths.sum() < tokens:
        lengths = np.append(lengths, rng.integers(1, longest + 1, size=lengths.size))
    ends = np.unique(np.minimum(np.cumsum(lengths), tokens))
    ids = rng.integers(0, vocabulary, tokens).astype(np.int32)
    return PackedTexts(ids=ids, type_ids=np.zeros_like(ids), cu_seqlens=np.append(0, ends).astype(np.int32))


def texts_by_memory(table: Sequence[TextLimit], memory_bytes: int, longest_tokens: int) -> int | None:
    """Texts per forward from the first entry that applies to this device and model, if there is one."""
    fitting = (one for one in table if longest_tokens <= one.max_tokens and memory_bytes > one.above_gib * GIB)
    return next((one.texts for one in fitting), None)
