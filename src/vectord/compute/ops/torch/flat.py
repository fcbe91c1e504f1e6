"""A batch as one array whose sizes follow from a FlatShape, so that one CUDA graph fits many batches.

    shape_of(texts)               the smallest shape that holds a batch, None for a batch without a flat form
    fill(texts, shape, numbers)   the batch in any shape that holds it, on the host; the rest is padding
    tokens_of(numbers, shape)     the same for the op set, on the device: slices of `numbers`, without a copy
    flat_of(texts, device)        all three for one batch

Padding is rows after the last text that no text attends to or pools, and texts and spans without rows. Attention uses
the variable-length kernel, or attention.py's. Pooling cuts rows into runs (each span, and the rows between two) and
runs into pieces, so that no thread of the device sums a long text alone. It needs no CUDA: the tests run it on the
processor.
"""

from __future__ import annotations

from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from msgspec.structs import replace
from torch import Tensor

from vectord.compute.ops.base import AttentionSpec, PackedTexts, Tokens
from vectord.compute.ops.groups import positions
from vectord.compute.ops.torch.varlen import Lengths
from vectord.schema import Int32

TILE_ROWS, TILED_FROM = 128, 2048  # larger batches are padded to whole tiles of the matrix products: 6 % at most
PIECE_ROWS = 64  # summed by one thread; a text of 2,048 tokens has 32 pieces, which one thread sums again


class NotFlat(Exception):
    """An op that this layout does not support: experts, and attention without a kernel for it."""


class FlatShape(msgspec.Struct, frozen=True, kw_only=True):
    """T rows for N texts of at most `longest` rows, with M pooled spans."""

    tokens: int
    texts: int
    spans: int
    longest: int
    adapters: bool = False  # whether it has the adapter of each row

    @property
    def runs(self) -> int:
        """Every span, and the rows before, between and after them."""
        return 2 * self.spans + 1

    @property
    def pieces(self) -> int:
        """The maximum pieces of these runs."""
        return self.tokens // PIECE_ROWS + self.runs

    @property
    def size(self) -> int:
        """Length of the array."""
        return sum(self.parts)

    @property
    def parts(self) -> tuple[int, ...]:
        """The sizes of the array's parts, in the order of `_numbers`."""
        tokens, spans = self.tokens, self.spans
        rows = (tokens,) * (4 if self.adapters else 3)
        return *rows, self.texts + 1, spans, spans, spans, spans, self.pieces + 1, self.runs + 1

    def rounded(self) -> FlatShape:
        """Return the shape with whole tiles of rows, if it is large."""
        return self if self.tokens < TILED_FROM else replace(self, tokens=-(-self.tokens // TILE_ROWS) * TILE_ROWS)

    def holds(self, other: FlatShape) -> bool:
        return (
            other.tokens <= self.tokens
            and other.texts <= self.texts
            and other.spans <= self.spans
            and other.longest <= self.longest
            and other.adapters <= self.adapters
        )


def shape_of(texts: PackedTexts) -> FlatShape | None:
    """Return the shape; None for batches of the grouped layout: parents, unattended rows, overlapping spans, images."""
    if texts.parents is not None or texts.keys is not None or texts.features is not None:
        return None
    if texts.spans is not None:
        ordered = texts.spans[np.argsort(texts.spans[:, 0], kind="stable")]
        if (ordered[1:, 0] < ordered[:-1, 1]).any():
            return None
    lengths = texts.cu_seqlens[1:] - texts.cu_seqlens[:-1]
    return FlatShape(
        tokens=texts.ids.size,
        texts=lengths.size,
        spans=lengths.size if texts.spans is None else len(texts.spans),
        longest=int(lengths.max(initial=0)),
        adapters=texts.adapters is not None,
    )


def fill(texts: PackedTexts, shape: FlatShape, numbers: Int32) -> None:
    """Write the whole of `numbers` (shape.size,). `shape` must hold the batch."""
    assert shape.adapters or texts.adapters is None, "a shape that does not hold the batch"
    assert numbers.shape == (shape.size,), "an array of another shape"
    bounds = pairwise(accumulate(shape.parts, initial=0))
    for (begin, end), (part, padding) in zip(bounds, _numbers(texts, shape), strict=True):
        assert part.size <= end - begin, "a shape that does not hold the batch"
        numbers[begin : begin + part.size] = part
        numbers[begin + part.size : end] = padding


def tokens_of(numbers: Tensor, shape: FlatShape) -> Tokens[Tensor]:
    """numbers (shape.size,) int32, on the device."""
    ids, type_ids, at, *rest = torch.split(numbers, list(shape.parts))
    adapters = rest.pop(0) if shape.adapters else None
    return Tokens(ids, type_ids, at, FlatLayout(shape.tokens, shape.longest, *rest), adapters)


def flat_of(texts: PackedTexts, device: torch.device) -> Tokens[Tensor]:
    """Return a batch that has a flat form, in the smallest shape, on `device`."""
    shape = shape_of(texts)
    assert shape is not None, "a batch without a flat form"
    numbers = np.empty(shape.size, np.int32)
    fill(texts, shape, numbers)
    return tokens_of(torch.from_numpy(numbers).to(device), shape)


class FlatLayout:
    """Where the texts and spans of a flat batch begin and end."""

    def __init__(
        self,
        rows: int,
        longest: int,
        ends: Tensor,
        firsts: Tensor,
        lasts: Tensor,
        counts: Tensor,
        order: Tensor,
        piece_ends: Tensor,
        run_ends: Tensor,
    ) -> None:
        """The parts of `_numbers`."""
        self._rows = rows
        self.firsts = firsts
        self.lasts = lasts
        self.lengths = Lengths(ends, ends, longest, longest)
        self._counts = counts
        self._order = order
        self._piece_ends = piece_ends
        self._run_ends = run_ends

    def suits_varlen(self, spec: AttentionSpec) -> bool:
        if spec.window == "block":  # of images, which have no flat form
            raise NotFlat
        return True

    @cached_property
    def row_ends(self) -> Tensor:
        """(T,) the end of each row's text; for rows of padding, of the last text, which is not after them."""
        return self.lengths.query_ends[self._row_texts]

    @cached_property
    def row_lengths(self) -> Tensor:
        """(T,) the length of each row's text; for rows of padding, of the last text or of none."""
        return self.row_ends - self.lengths.query_ends[self._row_texts - 1]

    @cached_property
    def _row_texts(self) -> Tensor:
        """(T,) the number of each row's text, from 1."""
        ends = self.lengths.query_ends
        rows = torch.arange(self._rows, dtype=torch.int32, device=ends.device)
        return torch.searchsorted(ends, rows, right=True).clamp(max=len(ends) - 1)

    def mean(self, x: Tensor) -> Tensor:
        """The mean of each span, in float32: sums of bfloat16 would lose the small terms of a long text."""
        return self._reduce(x.float(), "sum") / self._counts[:, None]

    def max(self, x: Tensor) -> Tensor:
        return self._reduce(x, "max")

    def _reduce(self, x: Tensor, how: str) -> Tensor:
        """(T, H) to (M, H). Always in the same order, and a NaN affects its own run only."""
        pieces = torch.segment_reduce(x, how, offsets=self._piece_ends, unsafe=True)  # unsafe: without checking them
        runs = torch.segment_reduce(pieces, how, offsets=self._run_ends, unsafe=True)
        return runs.index_select(0, self._order)


def _numbers(texts: PackedTexts, shape: FlatShape) -> list[tuple[npt.NDArray[Any], int]]:
    """The parts of the array, and the padding of each."""
    spans, rows = texts.pooled, texts.ids.size
    rank = np.argsort(spans[:, 0], kind="stable")
    edges = np.concatenate([[0], spans[rank].ravel(), [rows]])  # (2 * M + 2,) the starts of runs, the end of the last
    order = np.empty(len(spans), np.int32)
    order[rank] = 2 * np.arange(len(spans)) + 1  # the runs between belong to no span
    counts = -(-(edges[1:] - edges[:-1]) // PIECE_ROWS)  # pieces of each run
    run_ends = np.concatenate([[0], np.cumsum(counts)])
    pieces = int(run_ends[-1])
    nth = np.arange(pieces) - np.repeat(run_ends[:-1], counts)  # (P,) which piece of its run
    starts = np.repeat(edges[:-1], counts) + PIECE_ROWS * nth  # each piece ends where the next one starts
    return [
        (texts.ids, 0),
        (texts.type_ids, 0),
        (positions(texts), 0),
        *([(texts.row_adapters, 0)] if shape.adapters else []),
        (texts.cu_seqlens, rows),
        (spans[:, 0], 0),
        (spans[:, 1] - 1, 0),
        (spans[:, 1] - spans[:, 0], 1),
        (order, 0),
        (np.concatenate([starts, [rows]]), rows),
        (run_ends, pieces),
    ]
