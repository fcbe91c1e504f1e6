"""Images and pages of PDFs to the rows of a network of images: limits, decoding, resizing, and patches.

An image is read in two steps, on threads: its header decides its rows and its key in the cache, and unless its answer
is known there, its pixels are decoded when it runs. Pillow (the extra `images`) is imported on use.

Pixels are those that transformers 5.24's processors for PIL make of the opened file, turned by its EXIF orientation:
transparent pixels over white, RGB, Pillow's resize, a cut in the middle or into tiles. The network scales and
normalizes them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING, NoReturn

import msgspec
import numpy as np
from msgspec.structs import replace

from vectord.checkpoints.spec import ImageProcessor
from vectord.errors import InvalidField, ModelCannot, installing
from vectord.schema import PDF, Features, Float32, ImageFacts, Int32, Media, TextLength, TextLengths, TextOptions
from vectord.text.pdf import page_image, page_size
from vectord.text.pdf_process import DPI
from vectord.text.planes import first_size, free_size, patch_coordinates, windows_of
from vectord.text.sequence import Encoder, ReadRequest, Texts, cu_seqlens_of

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
MAX_BYTES = 32 * 2**20
MAX_PIXELS = 2**26  # 800 MB while it is decoded
PIXEL_BYTES = 12  # of an image while it is decoded: as read, over white, and in RGB, each in 4 bytes
MAX_RATIO = 200  # of the sides: the longer one is resized with the shorter one
BICUBIC = 3  # Pillow's number
SAMPLE_BLOCKS = 4
ORIENTATION = 0x0112  # the tag of EXIF
TURNS = (5, 6, 7, 8)  # its values that exchange width and height
CLASS_ID, PATCH_ID = 0, 1  # of rows in networks with a class token; without one, all rows are 0


class View(msgspec.Struct, frozen=True):
    """What a network sees at once: all of an image, or one tile of it."""

    height: int  # pixels
    width: int
    row: int = 0  # of the tile, from 1; 0: the whole image
    column: int = 0


class ImageViews(msgspec.Struct, frozen=True):
    """The views of one image: its tiles, from the upper left, and the whole image."""

    views: Sequence[View]
    side: int  # of a block of patches in a view, in pixels
    lines: int = 0  # of tiles
    columns: int = 0

    @property
    def blocks(self) -> tuple[int, int]:
        """The lines and columns of blocks in each view."""
        return self.views[0].height // self.side, self.views[0].width // self.side

    @property
    def boxes(self) -> Float32:
        """(n, 4) for each block of each view: left, top, right and bottom, in fractions of the image."""
        high, wide = self.blocks
        y, x = np.divmod(np.arange(high * wide), wide)
        blocks = np.stack([x / wide, y / high, (x + 1) / wide, (y + 1) / high], axis=1)
        tiles = [self.columns, self.lines] * 2
        boxes = [(blocks + [view.column - 1, view.row - 1] * 2) / tiles if view.row else blocks for view in self.views]
        return np.concatenate(boxes).astype(np.float32)


class Grid(msgspec.Struct, frozen=True, eq=False):
    """The rows of a view of a size."""

    ids: Int32  # (n,)
    type_ids: Int32 | None  # (n,)
    order: Int32 | None  # of the patches: block by block, so that a block's are adjacent; None: line by line
    blocks: Int32 | None  # (m, 2) the first and last + 1 rows of each block, line by line; None: rows are not merged
    coordinates: Int32 | None = None  # (n, 8) see compute/networks/planes.py; (n, 1) the window of each row


class ImageFile(msgspec.Struct, frozen=True, eq=False):
    """Implements sequence.Undecoded, for an image of which the header is read."""

    media: Media
    processor: ImageProcessor
    views: ImageViews
    facts: ImageFacts
    index: int

    @property
    def count(self) -> int:
        return len(self.views.views)

    @property
    def rows_bytes(self) -> int:
        processor, views = self.processor, self.views
        high, wide = (side // processor.patch for side in (views.views[0].height, views.views[0].width))
        return self.count * (high * wide + processor.class_token) * processor.row_width

    @property
    def decoding_bytes(self) -> int:
        return self.facts.width * self.facts.height * PIXEL_BYTES + 3 * self.rows_bytes

    def rows(self) -> list[Features]:
        image, processor = decoded(self.media, self.index), self.processor
        if views_of(image.size, processor) != self.views:
            template = "{field} is turned by metadata after its pixels, which are not read; save it turned."
            raise InvalidField(template, index=self.index)
        each = []
        for pixels in pixels_of(image, processor):
            rows = patches_of(pixels, processor.patch)
            order = _grid(processor, *(side // processor.patch for side in pixels.shape[:2])).order
            if order is not None:
                rows = rows[order]
            each.append(np.concatenate([np.zeros_like(rows[:1]), rows]) if processor.class_token else rows)
        return each


class ImageEncoder:
    """Implements sequence.Encoder, for inputs that are images."""

    special_ids: Int32 = np.zeros(0, np.int32)
    query_weights = None

    def __init__(self, processor: ImageProcessor) -> None:
        self._processor = processor

    def read(self, request: ReadRequest, part: range | None = None) -> Texts:
        """The rows of each image, in order, without pixels. Raises InvalidField for an image that is too large, or has
        no readable header."""
        indexes = range(len(request.inputs)) if part is None else part
        return Texts.join([self.read_image(request.inputs[index], index)[1] for index in indexes])

    def read_image(self, media: object, index: int) -> tuple[ImageViews, Texts]:
        """The views of an image and their sequences; with `merge`, each has a span for each block of patches.

        Raises as `read`, and ModelCannot without Pillow.
        """
        assert isinstance(media, Media), "a text is read by the network of texts"
        if find_spec("PIL") is None:
            template = "{field} has an image, which this model reads with Pillow, and that is missing here: {command}"
            raise ModelCannot(template, index=index, command=installing("images"))
        facts, digest = facts_of(media, index), digest_of(media)
        views = views_of((facts.width, facts.height), self._processor)
        texts = Texts.join([self._sequence(view, digest, facts, index) for view in views.views])
        return views, replace(texts, undecoded=[ImageFile(media, self._processor, views, facts, index)])

    def _sequence(self, view: View, digest: bytes, facts: ImageFacts, index: int) -> Texts:
        processor = self._processor
        grid = _grid(processor, view.height // processor.patch, view.width // processor.patch)
        rows = len(grid.ids)
        if view.row:
            digest = blake2b(b"%d %d" % (view.row, view.column), digest_size=16, key=digest).digest()
        return Texts(
            ids=grid.ids,
            type_ids=grid.type_ids,
            cu_seqlens=cu_seqlens_of([rows]),
            spans=grid.blocks,
            pooled=None if grid.blocks is None else np.array([len(grid.blocks)], np.int32),
            coordinates=grid.coordinates,
            digests=[digest],
            lengths=TextLengths([rows], {0: TextLength(rows, rows, images=(facts,), image_tokens=rows)}),
            indexes=[index],
        )


@lru_cache(64)  # of up to 10,000 rows
def _grid(processor: ImageProcessor, lines: int, columns: int) -> Grid:
    """The rows of a view with so many patches."""
    places, merge, order, blocks = np.arange(lines * columns, dtype=np.int32), processor.merge, None, None
    free, coordinates = processor.free, None
    if merge is not None:
        in_blocks = places.reshape(lines // merge, merge, columns // merge, merge).swapaxes(1, 2).reshape(-1, merge**2)
        starts = np.arange(0, places.size, merge**2, dtype=np.int32)
        if free is not None and free.window_blocks is not None:
            windows = windows_of(lines // merge, columns // merge, free.window_blocks)
            by_window = np.argsort(windows, kind="stable")
            in_blocks, starts = in_blocks[by_window], starts[np.argsort(by_window)]
            coordinates = np.repeat(windows[by_window], merge**2)[:, None]
        places = order = in_blocks.ravel()
        blocks = np.stack([starts, starts + merge**2], axis=1)
    y, x = np.divmod(places, np.int32(columns))
    if free is not None:  # the first half of a head turns by type_ids, which is the line in these networks
        return Grid(x, y, order, blocks, coordinates if free.side is None else patch_coordinates(y, x, free.side))
    if processor.most_patches is not None:
        if merge is None:  # the place of the i-th of n is n * (n - 1) / 2 + i: see ScaledGrid in networks/planes.py
            y, x = y + np.int32(lines * (lines - 1) // 2), x + np.int32(columns * (columns - 1) // 2)
        return Grid(y, x, order, blocks)
    if merge is not None:
        return Grid(places, None, order, blocks)
    kind = np.full(len(places), PATCH_ID if processor.class_token else CLASS_ID, np.int32)
    return Grid(np.concatenate([[np.int32(CLASS_ID)], kind]) if processor.class_token else kind, None, None, None)


def digest_of(media: Media) -> bytes:
    """16 bytes that identify the pixels."""
    key = b"" if media.page is None else f"{DPI} {media.page}".encode()
    return blake2b(media.data, digest_size=16, key=key).digest()


def facts_of(media: Media, index: int | None = None) -> ImageFacts:
    """What was sent, by the header of the file; of a PDF, its page. Raises InvalidField, also for its size."""
    from PIL import ImageMode  # noqa: PLC0415 - an extra

    if media.type == PDF:
        width, height = page_size(media, index)
        _check_sides(width, height, index)
        return ImageFacts(width, height, "pdf", 24)
    image = _opened(media, index)
    mode, kind = ImageMode.getmode(image.mode), (image.format or "").lower()
    depth = 1 if image.mode == "1" else 8 * int(mode.typestr[-1]) * len(mode.bands)
    width, height = image.size[::-1] if _is_turned(image, media.data) else image.size
    return ImageFacts(width, height, kind, depth)


def decoded(media: Media, index: int | None = None) -> Image:
    """The image in RGB, turned by EXIF, transparent pixels over white; of a PDF, its page. Raises as `facts_of`."""
    from PIL import Image, ImageOps  # noqa: PLC0415 - an extra

    if media.type == PDF:
        return page_image(media, index)
    image = _opened(media, index)
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


def _opened(media: Media, index: int | None) -> Image:
    """The image, of which no pixel is decoded yet."""
    from PIL import Image, UnidentifiedImageError  # noqa: PLC0415 - an extra

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
    pixels = image.width * image.height
    if pixels > MAX_PIXELS:
        _refuse_size("pixels", MAX_PIXELS, pixels, index)
    _check_sides(*image.size, index)
    return image


def _is_turned(image: Image, data: bytes) -> bool:
    """Whether EXIF exchanges width and height. Pillow has done so with the size of a TIFF file."""
    from PIL.Image import Image as AnyImage  # noqa: PLC0415 - an extra

    if image.format == "TIFF":
        return False
    if image.format == "PNG" and "exif" not in image.info:
        at = data.rfind(b"eXIf", 0, data.find(b"IEND"))  # after the pixels
        if at > 0:
            image.info["exif"] = data[at + 4 :][: int.from_bytes(data[at - 4 : at])]
    with suppress(Exception):  # a broken EXIF block
        return AnyImage.getexif(image).get(ORIENTATION) in TURNS  # PngImageFile's decodes the pixels
    return False


def _check_sides(width: int, height: int, index: int | None) -> None:
    if max(width, height) > MAX_RATIO * min(width, height):
        template = "{field} is {width} x {height} pixels; one side may be at most {limit} times the other."
        raise InvalidField(template, index=index, width=width, height=height, limit=MAX_RATIO)


def views_of(size: tuple[int, int], processor: ImageProcessor) -> ImageViews:
    """The views of an image with this width and height."""
    tiling, block = processor.tiling, processor.patch * (processor.merge or 1)
    if tiling is None:
        wide, high = _whole_size(size, processor) or processor.crop[::-1]
        return ImageViews([View(high, wide)], block)
    side = tiling.side
    columns, lines = (length // side for length in _tiled_sizes(size, processor)[1])
    if columns == lines == 1:
        return ImageViews([View(side, side)], block)
    tiles = [View(side, side, y + 1, x + 1) for y in range(lines) for x in range(columns)]
    return ImageViews([*tiles, View(side, side)], block, lines, columns)


def pixels_of(image: Image, processor: ImageProcessor) -> list[Features]:
    """(height, width, 3) of each of the `views_of` an image."""
    if processor.tiling is None:
        return [resized(image, processor)]
    side = processor.tiling.side
    # The image is resized twice, as the processor does it: to its longest edge, then to whole tiles.
    for size in _tiled_sizes(image.size, processor):
        image = image.resize(size, processor.resample)
    pixels = np.asarray(image)
    if image.size == (side, side):
        return [pixels]
    whole = np.asarray(image.resize((side, side), processor.resample))
    tiles = [pixels[y:][:side, x:][:, :side] for y in range(0, image.height, side) for x in range(0, image.width, side)]
    return [*tiles, whole]


def _tiled_sizes(size: tuple[int, int], processor: ImageProcessor) -> tuple[tuple[int, int], tuple[int, int]]:
    assert processor.tiling is not None
    first = _scaled(size, processor.tiling.longest_edge, even=True)
    side = processor.tiling.side
    # In whole tiles: the longer side first, which decides the shorter one.
    width, height = _scaled(first, -(-max(first) // side) * side)
    return first, (-(-width // side) * side, -(-height // side) * side)


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


def _whole_size(size: tuple[int, int], processor: ImageProcessor) -> tuple[int, int] | None:
    """Width and height to which an image is resized that keeps its ratio; None: it is cut."""
    width, height = size
    if processor.free is not None:
        return free_size(width, height, processor)
    if processor.most_patches is not None:
        high, wide = fitted(height, width, processor.patch, processor.most_patches, processor.merge)
        return wide, high
    return None


def resized(image: Image, processor: ImageProcessor) -> Features:
    """The pixels that the network sees: (height, width, 3)."""
    whole = _whole_size(image.size, processor)
    if processor.free is not None and processor.free.before is not None:
        image = image.resize(first_size(*image.size, processor, processor.free.before), BICUBIC)
    if whole is not None:
        return np.asarray(image.resize(whole, processor.resample))
    (width, height), size = image.size, processor.resize
    if isinstance(size, int):
        long = int(size * max(width, height) / min(width, height))
        size = (long, size) if width <= height else (size, long)
    image = image.resize(size[::-1], processor.resample)
    top, left = ((side - cut) // 2 for side, cut in zip(size, processor.crop, strict=True))
    # Pillow fills with black what lies outside, as the processors do.
    return np.asarray(image.crop((left, top, left + processor.crop[1], top + processor.crop[0])))


def fitted(height: int, width: int, patch: int, most: int, merge: int | None) -> tuple[int, int]:
    """Height and width of an image with at most so many patches: in whole blocks of `merge` by `merge`, or as many as
    search by halves finds.

    Source: transformers' Gemma4 and Siglip2, get_aspect_ratio_preserving_size and get_image_size_for_max_num_patches.
    """
    if merge is not None:
        block, scale = merge * patch, math.sqrt(most * patch**2 / (height * width))
        high, wide = int(scale * height / block), int(scale * width / block)
        longest = most // merge**2
        if not high:  # a narrow strip
            high, wide = 1, min(width // height, longest)
        elif not wide:
            high, wide = min(height // width, longest), 1
        return high * block, wide * block

    def side(scale: float, length: int) -> int:
        return max(math.ceil(length * scale / patch), 1) * patch

    low, high_scale = 1e-5 / 10, 100.0
    while high_scale - low >= 1e-5:
        middle = (low + high_scale) / 2
        fits = side(middle, height) // patch * (side(middle, width) // patch) <= most
        low, high_scale = (middle, high_scale) if fits else (low, middle)
    return side(low, height), side(low, width)


def patches_of(pixels: Features, side: int) -> Features:
    """pixels (H, W, 3) to (rows, 3 * side ** 2), from the upper left; what is less than a patch is left out."""
    high, wide = pixels.shape[0] // side, pixels.shape[1] // side
    blocks = pixels[: high * side, : wide * side].reshape(high, side, wide, side, 3)
    return blocks.transpose(0, 2, 4, 1, 3).reshape(high * wide, -1)


def with_pixels(texts: Texts) -> Texts:
    """The sequences of images with their pixels, decoded here."""
    return replace(texts, features=np.concatenate([rows for image in texts.undecoded for rows in image.rows()]))


def sample(encoder: Encoder, processor: ImageProcessor) -> Texts:
    """A small image, or some rows of its first view, for the test of a loaded network."""
    from PIL import Image  # noqa: PLC0415 - an extra

    file = BytesIO()
    Image.radial_gradient("L").save(file, "PNG")
    request = ReadRequest(inputs=[Media(file.getvalue())], options=TextOptions(), truncate=True)
    texts = with_pixels(encoder.read(request))
    if processor.merge is None or texts.spans is None or texts.features is None:
        return texts
    blocks = min(SAMPLE_BLOCKS, processor.rows // processor.merge**2)
    rows = blocks * processor.merge**2
    spans = texts.spans[texts.spans[:, 1] <= rows]
    return Texts(
        ids=texts.ids[:rows],
        cu_seqlens=cu_seqlens_of([rows]),
        spans=spans,
        pooled=np.array([len(spans)], np.int32),
        type_ids=None if texts.type_ids is None else texts.type_ids[:rows],
        features=texts.features[:rows],
        coordinates=None if texts.coordinates is None else texts.coordinates[:rows],
    )


def _refuse_size(unit: str, limit: int, given: int, index: int | None) -> NoReturn:
    template = "{field} may have at most {limit} {unit}; it has {given}."
    raise InvalidField(template, index=index, limit=limit, given=given, unit=unit)


def _broken(index: int | None) -> InvalidField:
    return InvalidField("{field} is a broken or truncated image.", index=index)
