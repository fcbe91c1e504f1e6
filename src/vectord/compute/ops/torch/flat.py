"""A batch as one array of numbers whose sizes follow from a FlatShape alone, so that one CUDA graph fits many batches.

    shape_of(texts)               the smallest shape that holds a batch, None for a batch that has no flat form
    fill(texts, shape, numbers)   the batch in any shape that holds it, on the host; what is left over is padding
    tokens_of(numbers, shape)     the same as the op set sees it, on the device: slices of `numbers`, nothing copied

Padding is rows behind the last text that no text attends to or pools, and texts and spans without rows. Attention is
the variable-length kernel's; pooling cuts rows into runs (each span, and what lies between two) and runs into pieces,
so that no thread of the device adds up a long text alone. No CUDA in it: the tests run it on the processor.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from vectord.compute.ops.base import AttentionSpec, PackedTexts, Tokens
from vectord.compute.ops.groups import positions
from vectord.compute.ops.torch.varlen import Lengths
from vectord.schema import Int32

PIECE_ROWS = 64  # what one thread adds up; a text of 2,048 tokens is 32 pieces, which one thread adds up again


class NotFlat(Exception):
    """An op that this layout cannot serve: attention but by the variable-length kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatShape:
    """T rows for N texts, none longer than `longest`, of which M spans are pooled."""

    tokens: int
    texts: int
    spans: int
    longest: int

    @property
    def runs(self) -> int:
        """Every span, and what lies before, between and behind them."""
        return 2 * self.spans + 1

    @property
    def pieces(self) -> int:
        """As many as the runs can have at most."""
        return self.tokens // PIECE_ROWS + self.runs

    @property
    def size(self) -> int:
        """Numbers in the array."""
        return sum(self.parts)

    @property
    def parts(self) -> tuple[int, ...]:
        """The sizes of what lies in the array, in the order of `_numbers`."""
        tokens, spans = self.tokens, self.spans
        return tokens, tokens, tokens, self.texts + 1, spans, spans, spans, spans, self.pieces + 1, self.runs + 1

    def holds(self, other: FlatShape) -> bool:
        return (
            other.tokens <= self.tokens
            and other.texts <= self.texts
            and other.spans <= self.spans
            and other.longest <= self.longest
        )


def shape_of(texts: PackedTexts) -> FlatShape | None:
    """None for what only the grouped layout can do: parents, rows that nobody attends to, spans that overlap."""
    if texts.parents is not None or texts.keys is not None:
        return None
    if texts.spans is not None and _overlap(texts.spans):
        return None
    lengths = np.diff(texts.cu_seqlens)
    return FlatShape(
        tokens=texts.ids.size, texts=lengths.size, spans=len(texts.pooled), longest=int(lengths.max(initial=0))
    )


def fill(texts: PackedTexts, shape: FlatShape, numbers: Int32) -> None:
    """Write the batch into `numbers` (shape.size,), all of it. `shape` must hold it."""
    bounds = np.cumsum((0, *shape.parts))
    assert numbers.shape == (bounds[-1],), "an array of another shape"
    for (begin, end), (part, padding) in zip(pairwise(bounds), _numbers(texts), strict=True):
        assert part.size <= end - begin, "a shape that does not hold the batch"
        numbers[begin : begin + part.size] = part
        numbers[begin + part.size : end] = padding


def tokens_of(numbers: Tensor, shape: FlatShape) -> Tokens[Tensor]:
    """numbers (shape.size,) int32, on the device."""
    ids, type_ids, at, *rest = torch.split(numbers, list(shape.parts))
    return Tokens(ids, type_ids, at, FlatLayout(shape.longest, *rest))


class FlatLayout:
    """Where the texts and spans of a flat batch begin and end."""

    def __init__(
        self,
        longest: int,
        ends: Tensor,
        firsts: Tensor,
        lasts: Tensor,
        counts: Tensor,
        order: Tensor,
        piece_ends: Tensor,
        run_ends: Tensor,
    ) -> None:
        """As `_numbers` has them."""
        self.firsts = firsts
        self.lasts = lasts
        self.lengths = Lengths(ends, ends, longest, longest)
        self._counts = counts
        self._order = order
        self._piece_ends = piece_ends
        self._run_ends = run_ends

    def suits_varlen(self, spec: AttentionSpec) -> bool:
        return True

    def mean(self, x: Tensor) -> Tensor:
        """Sums in float32: bfloat16 would lose the small terms of a long text."""
        return (self._reduce(x.float(), "sum") / self._counts[:, None]).to(x.dtype)

    def max(self, x: Tensor) -> Tensor:
        return self._reduce(x, "max")

    def _reduce(self, x: Tensor, how: str) -> Tensor:
        """(T, H) to (M, H). Always in the same order, and a row that is not a number spoils its own run alone."""
        pieces = torch.segment_reduce(x, how, offsets=self._piece_ends, unsafe=True)  # unsafe: without a look at them
        runs = torch.segment_reduce(pieces, how, offsets=self._run_ends, unsafe=True)
        return runs.index_select(0, self._order)


def _numbers(texts: PackedTexts) -> list[tuple[Int32, int]]:
    """What lies in the array, each with what fills the rest of its part."""
    spans, rows = texts.pooled, texts.ids.size
    rank = np.argsort(spans[:, 0], kind="stable")
    edges = np.concatenate([[0], spans[rank].ravel(), [rows]])  # (2 * M + 2,) where runs begin, and where the last ends
    order = np.empty(len(spans), np.int32)
    order[rank] = 2 * np.arange(len(spans)) + 1  # the runs in between belong to no span
    lengths = np.diff(edges)
    counts = -(-lengths // PIECE_ROWS)  # pieces of each run
    nth = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)  # (P,) which piece of its run
    piece_ends = np.append(np.repeat(edges[:-1], counts) + PIECE_ROWS * nth, rows)  # each begins where one ended
    run_ends = np.append(0, np.cumsum(counts))
    numbers = [
        (texts.ids, 0),
        (texts.type_ids, 0),
        (positions(texts), 0),
        (texts.cu_seqlens, rows),
        (spans[:, 0], 0),
        (spans[:, 1] - 1, 0),
        (spans[:, 1] - spans[:, 0], 1),
        (order, 0),
        (piece_ends, rows),
        (run_ends, int(run_ends[-1])),
    ]
    return [(part.astype(np.int32, copy=False), int(padding)) for part, padding in numbers]


def _overlap(spans: Int32) -> bool:
    ordered = spans[np.argsort(spans[:, 0], kind="stable")]
    return bool((ordered[1:, 0] < ordered[:-1, 1]).any())
