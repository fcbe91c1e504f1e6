"""Images to the rows of a network of images: limits, decoding, resizing, and patches.

The threads that tokenize texts call it. Pillow (the extra `images`) is imported on use.

Pixels are those that transformers 5.24's processors for PIL make of the opened file, turned by its EXIF orientation:
transparent pixels over white, RGB, Pillow's resize, a cut in the middle or into tiles. The network scales and
normalizes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from io import BytesIO
from typing import TYPE_CHECKING, NoReturn

import msgspec
import numpy as np
import numpy.typing as npt

from vectord.checkpoints.spec import ImageProcessor
from vectord.errors import InvalidField
from vectord.schema import ChunkOptions, Features, Float32, Int32, Media, Span, TextLength, TextOptions, Token
from vectord.text.sequence import Chunk, CutText, Encoder, ReadRequest, Texts, cu_seqlens_of

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
MAX_BYTES = 32 * 2**20
MAX_PIXELS = 2**26  # 200 MB decoded
MAX_RATIO = 200  # of the sides: the longer one is resized with the shorter one
SAMPLE_BLOCKS = 4
CLASS_ID, PATCH_ID = 0, 1  # of rows in networks with a class token; without one, all rows are 0


class View(msgspec.Struct, frozen=True, eq=False):
    """What a network sees at once: all of an image, or one tile of it."""

    pixels: Features  # (height, width, 3)
    row: int = 0  # of the tile, from 1; 0: the whole image
    column: int = 0


class ImageViews(msgspec.Struct, frozen=True, eq=False):
    """The views of one image: its tiles, from the upper left, and the whole image."""

    views: Sequence[View]
    width: int  # of the image, in pixels
    height: int
    lines: int = 0  # of tiles
    columns: int = 0


class ImageEncoder(Encoder):
    """Implements sequence.Encoder for images. Only `read` is called, for inputs that are images."""

    special_ids: Int32 = np.zeros(0, np.int32)
    query_weights = None

    def __init__(self, processor: ImageProcessor) -> None:
        self._processor = processor
        self._ids = np.zeros(processor.rows, np.int32)
        self._ids[processor.class_token :] = PATCH_ID if processor.class_token else CLASS_ID
        self._order: Int32 | None = None  # of the patches in a view: block by block, so that a block's are adjacent
        if (merge := processor.merge) is not None:
            high, wide = (side // processor.patch // merge for side in processor.crop)
            places = np.arange(processor.rows, dtype=np.int32).reshape(high, merge, wide, merge)
            self._ids = self._order = places.transpose(0, 2, 1, 3).ravel()

    def read(self, request: ReadRequest, part: range | None = None) -> Texts:
        """The rows of each image, in order. Raises InvalidField for an image that is too large or not readable."""
        indexes = range(len(request.inputs)) if part is None else part
        return Texts.join([self._read(request.inputs[index], index) for index in indexes])

    def _read(self, media: object, index: int) -> Texts:
        assert isinstance(media, Media), "a text is read by the network of texts"
        return self.sequences(media, views_of(decoded(media, index), self._processor), index)

    def sequences(self, media: Media, image: ImageViews, index: int) -> Texts:
        """The sequences of an image's views; with `merge`, each has a span for each block of patches."""
        processor, count = self._processor, len(image.views)
        features = np.zeros((count, processor.rows, processor.row_width), np.uint8)
        for rows, view in zip(features, image.views, strict=True):
            patches = patches_of(view.pixels, processor.patch)
            rows[processor.class_token :] = patches if self._order is None else patches[self._order]
        spans = pooled = None
        if processor.merge is not None:
            size, blocks = processor.merge**2, processor.rows // processor.merge**2
            firsts = np.arange(blocks, dtype=np.int32) * size
            spans = np.tile(np.stack([firsts, firsts + size], axis=1), (count, 1))
            pooled = np.full(count, blocks, np.int32)
        return Texts(
            ids=np.tile(self._ids, count),
            cu_seqlens=cu_seqlens_of([processor.rows] * count),
            spans=spans,
            pooled=pooled,
            features=features.reshape(-1, processor.row_width),
            digests=[blake2b(media.data, digest_size=16).digest()] * count,
            lengths=[TextLength(processor.rows, processor.rows, pixels=image.width * image.height)] * count,
            indexes=[index] * count,
        )

    def boxes(self, image: ImageViews) -> Float32:
        """(n, 4) for each block of each view: left, top, right and bottom, in fractions of the image."""
        processor = self._processor
        high, wide = (side // processor.patch // (processor.merge or 1) for side in processor.crop)
        y, x = np.divmod(np.arange(high * wide), wide)
        blocks = np.stack([x / wide, y / high, (x + 1) / wide, (y + 1) / high], axis=1)
        return np.concatenate([_in_image(blocks, view, image) for view in image.views]).astype(np.float32)

    def cut(self, texts: Sequence[str], max_tokens: int, part: range | None = None) -> Sequence[CutText]:
        _refuse()

    def chunk(self, text: str, how: ChunkOptions | Sequence[Span], max_chunks: int | None = None) -> Sequence[Chunk]:
        _refuse()

    def count(self, texts: Sequence[str], part: range | None = None) -> Sequence[int]:
        _refuse()

    def tokenize(
        self, texts: Sequence[str], *, add_special_tokens: bool, prompt_name: str | None
    ) -> Sequence[Sequence[Token]]:
        _refuse()

    def decode(self, ids: Sequence[Sequence[int]], *, skip_special_tokens: bool) -> Sequence[str]:
        _refuse()


def _in_image(boxes: npt.NDArray[np.float64], view: View, image: ImageViews) -> npt.NDArray[np.float64]:
    """Boxes (n, 4) in fractions of a view, in fractions of its image."""
    if not view.row:
        return boxes
    return (boxes + [view.column - 1, view.row - 1] * 2) / ([image.columns, image.lines] * 2)


def _refuse() -> NoReturn:
    raise AssertionError("the network of texts reads texts")


def decoded(media: Media, index: int | None = None) -> Image:
    """The image in RGB, turned by EXIF, transparent pixels over white.

    Raises InvalidField, for its size before its pixels are decoded.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError  # noqa: PLC0415 - an extra

    if len(media.data) > MAX_BYTES:
        _refuse_size("bytes", MAX_BYTES, len(media.data), index)
    try:
        image: Image.Image = Image.open(BytesIO(media.data), formats=FORMATS)
    except UnidentifiedImageError:
        template = "{field} is not an image in one of the formats {formats}."
        raise InvalidField(template, field=None, index=index, formats=", ".join(FORMATS)) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        template = "{field} has more than {limit} pixels."
        raise InvalidField(template, index=index, limit=MAX_PIXELS) from None
    except Exception as problem:  # the decoders raise anything for a broken file
        raise _broken(index) from problem
    width, height = image.size
    if width * height > MAX_PIXELS:
        _refuse_size("pixels", MAX_PIXELS, width * height, index)
    if max(width, height) > MAX_RATIO * min(width, height):
        template = "{field} is {width} x {height} pixels; one side may be at most {limit} times the other."
        raise InvalidField(template, index=index, width=width, height=height, limit=MAX_RATIO)
    try:
        image.load()
        with suppress(Exception):  # a broken EXIF block rotates nothing
            image = ImageOps.exif_transpose(image)
        if "A" in image.getbands() or image.info.get("transparency") is not None:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, (255, 255, 255, 255)), image)
        return image.convert("RGB")
    except Exception as problem:
        raise _broken(index) from problem


def views_of(image: Image, processor: ImageProcessor) -> ImageViews:
    """The image as its network sees it."""
    tiling = processor.tiling
    if tiling is None:
        return ImageViews([View(resized(image, processor))], image.width, image.height)
    # The image is resized twice, as the processor does it: to its longest edge, then to whole tiles.
    size, side = (image.width, image.height), tiling.side
    image = image.resize(_scaled(size, tiling.longest_edge, even=True), processor.resample)
    image = image.resize(_in_tiles(image.size, side), processor.resample)
    whole = View(np.asarray(image.resize((side, side), processor.resample)))
    columns, lines = image.width // side, image.height // side
    if columns == lines == 1:
        return ImageViews([View(np.asarray(image))], *size)
    pixels = np.asarray(image)
    tiles = [
        View(pixels[y * side :][:side, x * side :][:, :side], y + 1, x + 1)
        for y in range(lines)
        for x in range(columns)
    ]
    return ImageViews([*tiles, whole], *size, lines, columns)


def _scaled(size: tuple[int, int], longest: int, *, even: bool = False) -> tuple[int, int]:
    """Width and height with this longer side; even: the shorter one is rounded up to an even number.

    Source: Idefics3's get_resize_output_image_size, for longest edges up to 4,096.
    """
    width, height = size
    ratio = width / height
    if width >= height:
        short = int(longest / ratio)
        return longest, max(short + short % 2 * even, 1)
    short = int(longest * ratio)
    return max(short + short % 2 * even, 1), longest


def _in_tiles(size: tuple[int, int], side: int) -> tuple[int, int]:
    """Width and height in whole tiles: the longer one first, which decides the shorter one."""
    width, height = _scaled(size, -(-max(size) // side) * side)
    return -(-width // side) * side, -(-height // side) * side


def resized(image: Image, processor: ImageProcessor) -> Features:
    """The pixels that the network sees: (height, width, 3)."""
    width, height = image.size
    size = processor.resize
    if isinstance(size, int):
        long = int(size * max(width, height) / min(width, height))
        size = (long, size) if width <= height else (size, long)
    image = image.resize(size[::-1], processor.resample)
    top, left = ((side - cut) // 2 for side, cut in zip(size, processor.crop, strict=True))
    # Pillow fills with black what lies outside, as the processors do.
    return np.asarray(image.crop((left, top, left + processor.crop[1], top + processor.crop[0])))


def patches_of(pixels: Features, side: int) -> Features:
    """pixels (H, W, 3) to (rows, 3 * side ** 2), from the upper left; what is less than a patch is left out."""
    high, wide = pixels.shape[0] // side, pixels.shape[1] // side
    blocks = pixels[: high * side, : wide * side].reshape(high, side, wide, side, 3)
    return blocks.transpose(0, 2, 4, 1, 3).reshape(high * wide, -1)


def sample(processor: ImageProcessor) -> Texts:
    """A small image, or some rows of its first view, for the test of a loaded network."""
    from PIL import Image  # noqa: PLC0415 - an extra

    file = BytesIO()
    Image.radial_gradient("L").save(file, "PNG")
    request = ReadRequest(inputs=[Media(file.getvalue())], options=TextOptions(), truncate=True)
    texts = ImageEncoder(processor).read(request)
    if processor.merge is None or texts.spans is None or texts.features is None:
        return texts
    blocks = min(SAMPLE_BLOCKS, processor.rows // processor.merge**2)
    rows = blocks * processor.merge**2
    return Texts(
        ids=texts.ids[:rows],
        cu_seqlens=cu_seqlens_of([rows]),
        spans=texts.spans[:blocks],
        pooled=np.array([blocks], np.int32),
        features=texts.features[:rows],
    )


def _refuse_size(unit: str, limit: int, given: int, index: int | None) -> NoReturn:
    template = "{field} may have at most {limit} {unit}; it has {given}."
    raise InvalidField(template, index=index, limit=limit, given=given, unit=unit)


def _broken(index: int | None) -> InvalidField:
    return InvalidField("{field} is a broken or truncated image.", index=index)
