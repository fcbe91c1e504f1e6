"""Images become the pixels that the reference's processors make of them; hostile ones are refused for their headers."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import GifImagePlugin, Image, PngImagePlugin, WebPImagePlugin
from tests.checkpoints.reading import spec_of
from tests.towers import MOST_PATCHES, image_of, media_of, reference_inputs, write_towers

from vectord.checkpoints.spec import ImageProcessor, ModelSpec, Tiling
from vectord.errors import InvalidField
from vectord.schema import ImageFacts, Media, TextOptions
from vectord.text import images
from vectord.text.images import ImageEncoder, decoded, facts_of, views_of, with_pixels
from vectord.text.images import pixels_of as image_pixels
from vectord.text.sequence import ReadRequest, Texts


@pytest.fixture(scope="module", params=["CLIP", "Siglip"])
def spec(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    found = spec_of(write_towers(tmp_path_factory.mktemp("model"), request.param)).images
    assert found is not None
    return found


def read(spec: ModelSpec, *media: Media) -> Texts:
    assert spec.processor is not None
    return with_pixels(
        ImageEncoder(spec.processor).read(ReadRequest(inputs=media, options=TextOptions(), truncate=True))
    )


def pixels_of(spec: ModelSpec, *media: Media) -> np.ndarray:
    """(N, 3, H, W), put together again from the rows and normalized."""
    texts, processor = read(spec, *media), spec.processor
    assert texts.features is not None and processor is not None
    side, count = processor.patch, processor.crop[0] // processor.patch
    rows = texts.features.reshape(len(media), processor.rows, -1)[:, processor.class_token :]
    blocks = rows.reshape(len(media), count, count, 3, side, side).transpose(0, 3, 1, 4, 2, 5)
    whole = blocks.reshape(len(media), 3, *processor.crop).astype(float) * spec.config["rescale_factor"]
    mean, std = (np.reshape(spec.config[key], (1, 3, 1, 1)) for key in ("image_mean", "image_std"))
    result: np.ndarray = (whole - mean) / std
    return result


@pytest.mark.parametrize("size", [(60, 40), (31, 90), (32, 32), (8, 8), (33, 47), (200, 1)], ids=str)
def test_pixels_equal_the_processor(spec: ModelSpec, size: tuple[int, int]) -> None:
    """Larger, smaller, wide, high, odd."""
    image = image_of(*size)
    want = reference_inputs(spec.folder, [image])["pixel_values"]
    np.testing.assert_allclose(pixels_of(spec, media_of(image)), want, atol=1e-5)


@pytest.mark.parametrize("size", [(60, 40), (31, 90), (32, 32), (3, 2), (33, 47), (200, 1), (3000, 1700)], ids=str)
def test_an_image_of_any_ratio_has_the_processors_patches(size: tuple[int, int], tmp_path: Path) -> None:
    """NaFlex: as many whole patches as the limit allows, each with its place in column and line; none is padding."""
    found = spec_of(write_towers(tmp_path, "Siglip2")).images
    assert found is not None
    image = image_of(*size)
    want, texts = reference_inputs(found.folder, [image]), read(found, media_of(image))
    lines, columns = want["spatial_shapes"][0]
    assert texts.features is not None and texts.type_ids is not None
    assert len(texts.features) == lines * columns <= MOST_PATCHES
    pixels = (texts.features.astype(float) / 255 - 0.5) / 0.5
    by_channel = want["pixel_values"][0, : lines * columns].reshape(-1, 64, 3).swapaxes(1, 2).reshape(-1, 192)
    np.testing.assert_allclose(pixels, by_channel, atol=1e-5)
    firsts = texts.ids[0], texts.type_ids[0]
    assert firsts == (lines * (lines - 1) // 2, columns * (columns - 1) // 2)
    assert (texts.ids[-1], texts.type_ids[-1]) == (firsts[0] + lines - 1, firsts[1] + columns - 1)


def _transparent() -> Image.Image:
    image: Image.Image = image_of(40, 50, mode="RGBA")
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    return image


def _palette() -> Image.Image:
    image = _transparent().convert("P")
    image.info["transparency"] = 3
    return image


MODES: dict[str, tuple[Image.Image, str]] = {
    "grey": (image_of(40, 50, mode="L"), "PNG"),
    "one bit": (image_of(40, 50, mode="1"), "TIFF"),
    "grey and alpha": (_transparent().convert("LA"), "PNG"),
    "alpha": (_transparent(), "PNG"),
    "alpha of WebP": (_transparent(), "WEBP"),
    "palette": (_palette(), "PNG"),
    "16 bits": (Image.fromarray(np.arange(40 * 50, dtype=np.uint16).reshape(50, 40) * 30), "PNG"),
    "CMYK": (image_of(40, 50, mode="CMYK"), "JPEG"),
    "GIF": (_palette(), "GIF"),
    "BMP": (image_of(40, 50), "BMP"),
}


@pytest.mark.parametrize("name", MODES)
def test_every_mode_and_format(spec: ModelSpec, name: str) -> None:
    """As the processor converts the opened file: transparent pixels are white."""
    image, kind = MODES[name]
    media = media_of(image, kind)
    opened = Image.open(io.BytesIO(media.data))
    want = reference_inputs(spec.folder, [opened])["pixel_values"]
    np.testing.assert_allclose(pixels_of(spec, media), want, atol=1e-5)


def test_the_first_frame_of_an_animation_counts(spec: ModelSpec) -> None:
    """The others are not decoded."""
    first = image_of(40, 50, seed=1)
    moving = media_of(first, "PNG", save_all=True, append_images=[image_of(40, 50, seed=2)])
    assert np.array_equal(pixels_of(spec, moving), pixels_of(spec, media_of(first)))


def _gif(frames: int) -> bytes:
    """A file of so many frames, each of one pixel on a canvas of 40 x 50."""
    canvas = b"GIF89a" + struct.pack("<HHBBB", 40, 50, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    frame = b"," + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02D\x01\0"
    return canvas + frame * frames + b";"


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_an_animation_costs_its_first_frame(spec: ModelSpec, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many others follow: none is looked for."""
    frames = [image_of(40, 50, seed=seed) for seed in range(8)]
    moving = media_of(frames[0], kind, save_all=True, append_images=frames[1:])
    for plugin in (
        Image.Image,
        GifImagePlugin.GifImageFile,
        PngImagePlugin.PngImageFile,
        WebPImagePlugin.WebPImageFile,
    ):
        monkeypatch.setattr(plugin, "seek", _fail)
    read(spec, moving, Media(_gif(1_000_000)))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF"])
def test_a_polyglot_is_the_image_it_begins_with(spec: ModelSpec, kind: str) -> None:
    """What follows, such as an archive, a page or another image, is not read."""
    image = media_of(image_of(40, 50), kind)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a.html", "<script>alert(1)</script>")
    for other in (archive.getvalue(), b"<html><script>alert(1)</script>", media_of(image_of(9, 9), "BMP").data):
        assert np.array_equal(pixels_of(spec, Media(image.data + other)), pixels_of(spec, image))
        with pytest.raises(InvalidField):
            read(spec, Media(other[:3] + image.data))


def _exif(entries: int, *values: bytes) -> bytes:
    """EXIF with a table that announces so many entries."""
    return b"Exif\0\0II*\0" + struct.pack("<IH", 8, entries) + b"".join(values)


HOSTILE_EXIF = {
    "an unknown orientation": _exif(1, struct.pack("<HHIII", 0x0112, 3, 1, 0xFFFF, 0)),
    "an orientation in words": _exif(1, struct.pack("<HHI4sI", 0x0112, 2, 4, b"6666", 0)),
    "2 billion orientations": _exif(1, struct.pack("<HHIII", 0x0112, 3, 2**31, 0, 0)),
    "a table in itself": _exif(2, struct.pack("<HHII", 0x8769, 4, 1, 8), struct.pack("<HHIII", 0x8825, 4, 1, 8, 8)),
    "65,535 entries": _exif(65_535, struct.pack("<HHII", 0x0112, 5, 2**30, 2**30) * 4000),
    "an offset beyond the end": b"Exif\0\0II*\0" + struct.pack("<I", 2**31),
}


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("name", HOSTILE_EXIF)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_hostile_exif_turns_nothing(spec: ModelSpec, kind: str, name: str) -> None:
    """It is no error either: the photo is there."""
    image = image_of(60, 40)
    assert np.array_equal(
        pixels_of(spec, media_of(image, kind, exif=HOSTILE_EXIF[name])), pixels_of(spec, media_of(image, kind))
    )


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_a_photo_is_turned_as_its_camera_says(spec: ModelSpec) -> None:
    """EXIF orientation 6: the camera was held upright. A broken EXIF block turns nothing and is no error."""
    image, exif = image_of(60, 40), Image.Exif()
    exif[0x0112] = 6
    upright = media_of(image.transpose(Image.Transpose.ROTATE_270))
    assert np.array_equal(pixels_of(spec, media_of(image, "PNG", exif=exif)), pixels_of(spec, upright))
    plain = media_of(image, "JPEG")
    broken = media_of(image, "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    assert np.array_equal(pixels_of(spec, broken), pixels_of(spec, plain))


def test_an_orientation_after_the_pixels_counts(tmp_path: Path) -> None:
    """Of a PNG, whose pixels are not decoded to find it; of a model whose rows depend on width and height."""
    found = spec_of(write_towers(tmp_path, "Siglip2")).images
    assert found is not None
    image, exif = image_of(60, 30), Image.Exif()
    exif[0x0112] = 6
    content = exif.tobytes()
    chunk = struct.pack(">I", len(content)) + b"eXIf" + content + struct.pack(">I", zlib.crc32(b"eXIf" + content))
    data = media_of(image).data
    late = Media(data[:-12] + chunk + data[-12:])
    turned, upright = read(found, late), read(found, media_of(image.transpose(Image.Transpose.ROTATE_270)))
    assert np.array_equal(turned.features, upright.features) and np.array_equal(turned.ids, upright.ids)
    assert (facts_of(late).width, facts_of(late).height) == (30, 60)


def test_an_image_costs_its_rows_and_is_known_by_its_file(spec: ModelSpec) -> None:
    """Rows count as tokens; the cache knows an image by the digest of its bytes."""
    one, other = media_of(image_of(40, 50)), media_of(image_of(40, 50, seed=9))
    texts = read(spec, one, other, one)
    assert spec.processor is not None
    assert [length.kept for length in texts.lengths] == [spec.processor.rows] * 3
    assert texts.digests[0] == texts.digests[2] != texts.digests[1]


def _png(width: int, height: int, data: bytes = b"", *before: tuple[bytes, bytes]) -> bytes:
    """A PNG whose header claims this size. before: chunks before the pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), *before, (b"IDAT", zlib.compress(data)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*one) for one in chunks)


ATTACKS: dict[str, tuple[bytes, str]] = {
    "a bomb": (_png(60_000, 60_000), "more than 67108864 pixels"),
    "many pixels": (_png(9_000, 9_000), "at most 67108864 pixels; it has 81000000"),
    "a line": (_png(65_535, 1), "65535 x 1 pixels; one side may be at most 200 times the other"),
    "truncated": (media_of(image_of(90, 90), "JPEG").data[:600], "broken or truncated"),
    "no pixels": (_png(50, 50), "broken or truncated"),
    "a bomb in a note": (
        _png(9, 9, b"", (b"zTXt", b"note\0\0" + zlib.compress(bytes(2**26)))),
        "broken or truncated",
    ),
    "empty": (b"", "not an image in one of the formats BMP, GIF, JPEG, PNG, TIFF, WEBP"),
    "SVG": (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "not an image in one of the formats"),
    "PDF": (b"%PDF-1.7\n", "not an image in one of the formats"),
    "EPS, which would start a program": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image in one"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_hostile_file_is_refused_with_its_index(spec: ModelSpec, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For its size before a pixel is decoded."""
    data, reason = ATTACKS[name]
    if "pixels" in reason:
        monkeypatch.setattr(Image.Image, "load", _fail)
    with pytest.raises(InvalidField) as caught:
        read(spec, Media(data)) if "pixels" in reason else read(spec, media_of(image_of(9, 9)), Media(data))
    assert reason in caught.value.message
    assert caught.value.index == (0 if "pixels" in reason else 1)


def _fail(*arguments: Any) -> None:
    raise AssertionError("pixels were decoded")


def test_a_large_file_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of bytes is checked first."""
    monkeypatch.setattr(images, "MAX_BYTES", 100)
    with pytest.raises(InvalidField, match="at most 100 bytes; it has 101"):
        decoded(Media(bytes(101)))


@pytest.mark.parametrize(
    ("mode", "kind", "depth"),
    [
        ("RGB", "JPEG", 24),
        ("RGB", "WEBP", 24),
        ("RGBA", "TIFF", 32),
        ("L", "BMP", 8),
        ("P", "GIF", 8),
        ("I;16", "PNG", 16),
        ("1", "TIFF", 1),
    ],
)
def test_the_facts_are_those_of_the_file(mode: str, kind: str, depth: int) -> None:
    """Turned by EXIF: its width is the height of the stored pixels."""
    exif = Image.Exif()
    exif[0x0112] = 6
    media = media_of(image_of(30, 20).convert("L" if mode == "I;16" else mode).convert(mode), kind, exif=exif)
    turned = kind not in ("GIF", "BMP")
    assert facts_of(media) == ImageFacts(*((20, 30) if turned else (30, 20)), kind.lower(), depth)
    assert decoded(media).size == ((20, 30) if turned else (30, 20))


@pytest.mark.parametrize("longest", [128, 32], ids=["tiles", "one view"])
@pytest.mark.parametrize("size", [(90, 200), (300, 110), (32, 32), (7, 7), (1, 190), (129, 127)], ids=str)
def test_tiles_equal_the_processor(size: tuple[int, int], longest: int) -> None:
    """Idefics3's: of wide, high and small images; the blocks of a view's patches are adjacent."""
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    image, side, patch = image_of(*size), 32, 8
    edges = {"size": {"longest_edge": longest}, "max_image_size": {"longest_edge": side}}
    processor = Idefics3ImageProcessorPil(**edges, do_normalize=False, rescale_factor=1.0)
    want = processor(image, return_tensors="np", return_row_col_info=True)
    tiling = Tiling(longest_edge=longest, side=side)
    own = ImageProcessor(
        resize=(side, side), resample=1, crop=(side, side), patch=patch, class_token=False, merge=2, tiling=tiling
    )
    found, each = views_of(image.size, own), image_pixels(image, own)
    assert [[found.lines]] == want["rows"] and [[found.columns]] == want["cols"]
    assert np.array_equal(np.stack(each).transpose(0, 3, 1, 2), want["pixel_values"][0])
    rows = with_pixels(ImageEncoder(own).read_image(media_of(image), 0)[1])
    assert rows.features is not None and len(set(rows.digests)) == len(found.views)
    in_order = np.stack([images.patches_of(pixels, patch) for pixels in each])
    assert rows.ids[:4].tolist() == [0, 1, 4, 5]
    assert np.array_equal(rows.features.reshape(in_order.shape), in_order[:, rows.ids[:16]])


def test_pixels_that_make_no_whole_patch_are_left_out(tmp_path: Path) -> None:
    """As by a convolution: SigLIP's 384 pixels have 27 patches of 14 in a row."""
    pixels = np.asarray(image_of(34, 33))
    assert np.array_equal(images.patches_of(pixels, 8), images.patches_of(pixels[:32, :32], 8))
