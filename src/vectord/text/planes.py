"""Images of any size to the rows of a network: sizes, patches and coordinates. images.py decodes the files.

Sizes are those of qwen_vl_utils' smart_resize, which the scripts of Qwen3-VL-Embedding and its reranker call;
transformers' processor differs for images that are at most half a block wide or high.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from vectord.checkpoints.spec import FreeProcessor
from vectord.schema import Features, Float32, ImageFacts, Int32, Media, TextLength
from vectord.text.images import decoded, digest_of, patches_of
from vectord.text.sequence import ReadRequest, Texts, cu_seqlens_of


class PlaneImage(msgspec.Struct, frozen=True, eq=False):
    features: Features  # (T, W) its patches, block by block
    places: Int32  # (T, 2) the row and column of each
    blocks: tuple[int, int]  # rows and columns of blocks
    facts: ImageFacts

    @property
    def boxes(self) -> Float32:
        """(n, 4) of the blocks: left, top, right and bottom, in fractions of the image."""
        high, wide = self.blocks
        y, x = np.divmod(np.arange(high * wide), wide)
        return np.stack([x / wide, y / high, (x + 1) / wide, (y + 1) / high], axis=1).astype(np.float32)


class PlaneEncoder:
    """Implements sequence.Encoder for images of any size."""

    special_ids: Int32 = np.zeros(0, np.int32)
    query_weights = None

    def __init__(self, processor: FreeProcessor) -> None:
        self._processor = processor

    def read(self, request: ReadRequest, part: range | None = None) -> Texts:
        """The rows of each image, in order. Raises InvalidField for an image that is too large or not readable."""
        indexes = range(len(request.inputs)) if part is None else part
        found = []
        for index in indexes:
            media = request.inputs[index]
            assert isinstance(media, Media), "a text is read by the network of texts"
            found.append(self.sequence(media, self.view_of(media, index), index))
        return Texts.join(found)

    def view_of(self, media: Media, index: int) -> PlaneImage:
        processor, (image, facts) = self._processor, decoded(media, index)
        side, block = processor.patch, processor.patch * processor.merge
        size = free_size(image.width, image.height, processor)
        high, wide = size[1] // block, size[0] // block
        order = block_order(high, wide, processor.merge)
        patches = patches_of(np.asarray(image.resize(size, processor.resample)), side)
        places = np.stack(np.divmod(order, size[0] // side), axis=1).astype(np.int32)
        return PlaneImage(patches[order], places, (high, wide), facts)

    def sequence(self, media: Media, image: PlaneImage, index: int) -> Texts:
        """The rows of one image, with a span for each block of patches."""
        count, size = len(image.features), self._processor.merge**2
        firsts = np.arange(0, count, size, dtype=np.int32)
        return Texts(
            ids=np.zeros(count, np.int32),
            cu_seqlens=cu_seqlens_of([count]),
            spans=np.stack([firsts, firsts + size], axis=1),
            pooled=np.array([len(firsts)], np.int32),
            features=image.features,
            coordinates=patch_coordinates(image.places, self._processor.side),
            digests=[digest_of(media)],
            lengths=[TextLength(count, count, images=(image.facts,), image_tokens=count)],
            indexes=[index],
        )


def free_size(width: int, height: int, processor: FreeProcessor) -> tuple[int, int]:
    """Width and height in whole blocks, with about the same ratio and an area within the limits."""
    block = processor.patch * processor.merge
    wide, high = (max(block, round(side / block) * block) for side in (width, height))
    if wide * high > processor.max_pixels:
        shrink = math.sqrt(width * height / processor.max_pixels)
        wide, high = (max(block, math.floor(side / shrink / block) * block) for side in (width, height))
    elif wide * high < processor.min_pixels:
        grow = math.sqrt(processor.min_pixels / (width * height))
        wide, high = (math.ceil(side * grow / block) * block for side in (width, height))
    return wide, high


def block_order(high: int, wide: int, merge: int) -> npt.NDArray[np.int64]:
    """The patches of `high` x `wide` blocks, block by block, by their places from the upper left."""
    places = np.arange(high * wide * merge**2).reshape(high, merge, wide, merge)
    return places.transpose(0, 2, 1, 3).ravel()


def patch_coordinates(places: Int32, side: int) -> Int32:
    """(T, 10) of the patches of one image, in the order of its rows: see compute/networks/planes.py.

    places (T, 2): the row and column of each patch, from 0. side: of the network's table of positions. The first two
    columns are those less the patch's place in the sequence, to which the network adds them.
    """
    rows, columns = places.T
    at = np.arange(len(rows))
    high, wide = (max(int(each.max()), 1) for each in (rows, columns))
    (upper, down), (left, right) = np.divmod(rows * (side - 1), high), np.divmod(columns * (side - 1), wide)
    lower, beyond = np.minimum(upper + 1, side - 1), np.minimum(left + 1, side - 1)
    corners = [upper * side + left, upper * side + beyond, lower * side + left, lower * side + beyond]
    fractions = [down, np.full_like(at, high), right, np.full_like(at, wide)]
    return np.stack([rows - at, columns - at, *corners, *fractions], axis=1).astype(np.int32)


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
