"""The sizes and coordinates of images of any size, and of texts with them. images.py and interleaved.py call it.

Sizes are those of qwen_vl_utils' smart_resize, which the scripts of Qwen3-VL-Embedding and its reranker call, or of
transformers' processor, which differs for images that are at most half a block wide or high.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from vectord.checkpoints.spec import FreeSize, ImageProcessor
from vectord.schema import Int32


def free_size(width: int, height: int, processor: ImageProcessor) -> tuple[int, int]:
    """Width and height in whole blocks, with about the same ratio and an area within the limits."""
    assert processor.free is not None and processor.merge is not None
    limits, block = processor.free, processor.patch * processor.merge
    if limits.before is not None:
        width, height = first_size(width, height, processor, limits.before)
    least = 0 if limits.rounds_to_none else block
    wide, high = (max(least, round(side / block) * block) for side in (width, height))
    if wide * high > limits.max_pixels:
        shrink = math.sqrt(width * height / limits.max_pixels)
        wide, high = (max(block, math.floor(side / shrink / block) * block) for side in (width, height))
    elif wide * high < limits.min_pixels:
        grow = math.sqrt(limits.min_pixels / (width * height))
        wide, high = (math.ceil(side * grow / block) * block for side in (width, height))
    return wide, high


def first_size(width: int, height: int, processor: ImageProcessor, before: tuple[int, int]) -> tuple[int, int]:
    """The size to which an image is resized first. before: FreeSize.before."""
    return free_size(width, height, replace(processor, free=FreeSize(min_pixels=before[0], max_pixels=before[1])))


def patch_coordinates(rows: Int32, columns: Int32, side: int) -> Int32:
    """(T, 8) of the patches of one image, in the order of its rows: see compute/networks/planes.py.

    rows, columns (T,): of each patch, from 0. side: of the network's table of positions.
    """
    high, wide = (max(int(each.max()), 1) for each in (rows, columns))
    (upper, down), (left, right) = np.divmod(rows * (side - 1), high), np.divmod(columns * (side - 1), wide)
    lower, beyond = np.minimum(upper + 1, side - 1), np.minimum(left + 1, side - 1)
    corners = [upper * side + left, upper * side + beyond, lower * side + left, lower * side + beyond]
    fractions = [down, np.full_like(down, high), right, np.full_like(right, wide)]
    return np.stack([*corners, *fractions], axis=1).astype(np.int32)


def windows_of(lines: int, columns: int, side: int) -> Int32:
    """The window of each block (lines * columns,), numbered line by line. side: of a window, in blocks."""
    row, column = np.divmod(np.arange(lines * columns), columns)
    windows: Int32 = (row // side * -(-columns // side) + column // side).astype(np.int32)
    return windows


def text_coordinates(marks: npt.NDArray[np.bool_], blocks: Sequence[tuple[int, int]]) -> Int32:
    """(T, 3) what the network adds to the positions of a text with images: in time, and of row and column.

    marks (T,): whether a row is one of an image. blocks: the rows and columns of each image. An image begins at the
    position after the text before it, and takes as many positions as its longer side. Source: Qwen3VLModel.
    """
    moved = np.zeros((3, len(marks)), np.int32)
    places, shift = np.flatnonzero(marks), 0
    for high, wide in blocks:
        own, places = places[: high * wide], places[high * wide :]
        begin, end = own[0] + shift, own[-1] + 1
        row, column = np.divmod(np.arange(high * wide), wide)
        moved[:, own] = np.stack([np.zeros_like(row), row, column]) + begin - own
        shift = begin + max(high, wide) - end
        moved[:, end:] = shift
    return moved.T.copy()
