"""Images to the rows of a network of images: limits, decoding, resizing, and patches.

The threads that tokenize texts call it. Pillow (the extra `images`) is imported on use.

Pixels are those that transformers 5.24's processors for PIL make of the opened file, turned by its EXIF orientation:
transparent pixels over white, RGB, Pillow's resize, a cut in the middle. The network scales and normalizes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from io import BytesIO
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from vectord.checkpoints.spec import ImageProcessor
from vectord.errors import InvalidField
from vectord.schema import ChunkOptions, Features, Int32, Media, Span, TextLength, Token
from vectord.text.sequence import Chunk, CutText, Encoder, ReadRequest, Texts, cu_seqlens_of

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
MAX_BYTES = 32 * 2**20
MAX_PIXELS = 2**26  # 200 MB decoded
MAX_RATIO = 200  # of the sides: the longer one is resized with the shorter one
CLASS_ID, PATCH_ID = 0, 1  # of rows in networks with a class token; without one, all rows are 0


class ImageEncoder(Encoder):
    """Implements sequence.Encoder for images. Only `read` is called, for inputs that are images."""

    special_ids: Int32 = np.zeros(0, np.int32)
    query_weights = None

    def __init__(self, processor: ImageProcessor) -> None:
        self._processor = processor
        self._ids = np.zeros(processor.rows, np.int32)
        self._ids[processor.class_token :] = PATCH_ID if processor.class_token else CLASS_ID

    def read(self, request: ReadRequest, part: range | None = None) -> Texts:
        """The rows of each image, in order. Raises InvalidField for an image that is too large or not readable."""
        processor = self._processor
        indexes = range(len(request.inputs)) if part is None else part
        count = len(indexes)
        features = np.zeros((count, processor.rows, processor.row_width), np.uint8)
        digests, lengths = [], []
        for rows, index in zip(features, indexes, strict=True):
            media = request.inputs[index]
            assert isinstance(media, Media), "a text is read by the network of texts"
            image = decoded(media, index)
            rows[processor.class_token :] = patches_of(resized(image, processor), processor.patch)
            digests.append(blake2b(media.data, digest_size=16).digest())
            lengths.append(TextLength(processor.rows, processor.rows, pixels=image.width * image.height))
        return Texts(
            ids=np.tile(self._ids, count),
            cu_seqlens=cu_seqlens_of([processor.rows] * count),
            features=features.reshape(-1, processor.row_width),
            digests=digests,
            lengths=lengths,
            indexes=indexes,
        )

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


def sample_image() -> Media:
    """A small image, for the test of a loaded network."""
    from PIL import Image  # noqa: PLC0415 - an extra

    file = BytesIO()
    Image.radial_gradient("L").save(file, "PNG")
    return Media(file.getvalue())


def _refuse_size(unit: str, limit: int, given: int, index: int | None) -> NoReturn:
    template = "{field} may have at most {limit} {unit}; it has {given}."
    raise InvalidField(template, index=index, limit=limit, given=given, unit=unit)


def _broken(index: int | None) -> InvalidField:
    return InvalidField("{field} is a broken or truncated image.", index=index)
