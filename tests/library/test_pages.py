"""vectord.Embedder with a model of pages: images and queries have vectors that can be compared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.library.test_images import answer
from tests.pages import MERGE, PATCH, QUERIES, SIDE, QwenReference, Reference, page_images, write_colqwen, write_pages
from tests.towers import image_of, media_of

from vectord import Embedder
from vectord.errors import ImagesTooLong, InferenceFailed, InvalidField
from vectord.schema import Media, TextOptions
from vectord.text import images

COLBERT = frozenset({"colbert"})
ROWS = (SIDE // PATCH // MERGE) ** 2  # of a view


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pages(tmp_path_factory.mktemp("pages"), "colmodernvbert")


@pytest.fixture(scope="module")
def embedder(folder: Path) -> Iterator[Embedder]:
    with Embedder(str(folder), dtype="float32", offline=True, cache_bytes=2**20) as made:
        yield made


def test_images_and_texts_in_one_call(folder: Path, embedder: Embedder) -> None:
    """In any order, as the library of the model embeds each alone."""
    reference, shown = Reference(folder), page_images()
    given = [QUERIES[0], shown[0], shown[1], QUERIES[1]]
    found = embedder.embed(given, outputs="colbert", kind="query")
    queries, images = reference.queries(QUERIES), reference.images(shown)
    for own, want in zip(found.colbert, [queries[0], images[0], images[1], queries[1]], strict=True):
        np.testing.assert_allclose(own, want, atol=1e-4)


def test_a_known_page_is_not_decoded_again(embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor run by the network of images: each of its tiles is known, and differs from the others."""
    page = media_of(image_of(90, 200, seed=5))
    (first,) = answer(embedder, page, outputs=COLBERT).colbert
    monkeypatch.setattr(images, "decoded", None)
    (again,) = answer(embedder, page, outputs=COLBERT).colbert
    assert np.array_equal(again, first)


def test_the_patches_of_an_image(embedder: Embedder) -> None:
    """A high image of 2 x 4 tiles: each row's box in the whole image, and the whole image once more after the tiles."""
    found = embedder.embed([image_of(90, 200), "a fox"], outputs="colbert", patches=True)
    boxes, words = found.patches
    assert words is None and len(boxes) == len(found.colbert[0])
    shown = boxes[~np.isnan(boxes[:, 0])]
    assert len(shown) == 9 * ROWS
    np.testing.assert_allclose(shown[0], (0, 0, 1 / 8, 1 / 16), atol=1e-6)
    np.testing.assert_allclose(shown[ROWS], (1 / 2, 0, 5 / 8, 1 / 16), atol=1e-6)  # the next tile of the line
    np.testing.assert_allclose(shown[-ROWS], (0, 0, 1 / 4, 1 / 4), atol=1e-6)
    np.testing.assert_allclose(shown[-1], (3 / 4, 3 / 4, 1, 1), atol=1e-6)
    areas = ((shown[:, 2:] - shown[:, :2]).prod(axis=1)).reshape(9, ROWS).sum(axis=1)
    np.testing.assert_allclose(areas, [1 / 8] * 8 + [1], atol=1e-6)


def test_an_image_of_any_size(tmp_path: Path) -> None:
    """A high one, of 6 lines of 2 blocks, which the network of images reads in windows: a box for each, by line."""
    folder = write_colqwen(tmp_path, "qwen2_5_vl", saved_by="colpali_engine")
    image, reference = image_of(60, 180), QwenReference(folder, "colpali_engine")
    with Embedder(str(folder), dtype="float32", offline=True) as embedder:
        found = embedder.embed([image, QUERIES[0]], outputs="colbert", kind="query", patches=True)
    for own, want in zip(found.colbert, [*reference.images([image]), *reference.queries(QUERIES[:1])], strict=True):
        np.testing.assert_allclose(own, want, atol=1e-4)
    boxes, words = found.patches
    assert words is None and len(boxes) == len(found.colbert[0])
    rows = [(x / 2, y / 6, (x + 1) / 2, (y + 1) / 6) for y in range(6) for x in range(2)]
    np.testing.assert_allclose(boxes[~np.isnan(boxes[:, 0])], rows, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"outputs": frozenset({"tokens"})}, "ColBERT vectors only"),
        ({"colbert": {"pool_factor": 2.0}}, "leave pooling out"),
    ],
    ids=["other vectors", "pooled"],
)
def test_patches_of_other_rows_are_refused(embedder: Embedder, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidField, match=reason):
        embedder.embed("a fox", patches=True, **{"outputs": "colbert", **options})


def test_rows_and_pixels_are_counted(embedder: Embedder) -> None:
    """The tokens are those of the text with the rows of the image."""
    result = answer(embedder, media_of(image_of(7, 7)), "a fox", outputs=COLBERT)
    length, words = result.usage.lengths
    assert result.colbert is not None
    assert (length.kept, length.pixels) == (len(result.colbert[0]), 49) and words.pixels == 0
    assert length.kept > ROWS


def test_a_text_runs_no_network_of_images(embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure of that network fails images alone."""
    (served,) = embedder._engine._registry.targets
    assert served.lead.images is not None and served.lead.images.runner is not None
    monkeypatch.setattr(served.lead.images.runner, "run", _fail)
    embedder.embed("a fox", outputs="colbert")
    with pytest.raises(InferenceFailed, match="a network of images"):
        embedder.embed(["a fox", image_of(9, 9)], outputs="colbert")


async def _fail(*arguments: Any, **options: Any) -> None:
    raise InferenceFailed("a network of images")


def test_a_broken_image_fails_alone(embedder: Embedder) -> None:
    image, broken = media_of(image_of(90, 90)), Media(media_of(image_of(90, 90)).data[:200])
    result = answer(embedder, "a fox", broken, image, partial=True, outputs=COLBERT, patches=True)
    assert {index: error.index for index, error in result.failures.items()} == {1: 1}
    whole = answer(embedder, "a fox", image, outputs=COLBERT)
    assert result.colbert is not None and whole.colbert is not None and result.patches is not None
    for own, want in zip([result.colbert[0], result.colbert[2]], whole.colbert, strict=True):
        np.testing.assert_allclose(own, want, atol=1e-6)
    assert result.patches[2] is not None and len(result.patches[2]) == len(result.colbert[2])
    with pytest.raises(InvalidField, match=r"`texts\[1\]` is a broken or truncated image"):
        embedder.embed(["a fox", broken.data], outputs="colbert")


def test_an_image_is_never_truncated(embedder: Embedder) -> None:
    """Texts are cut at the limit; an image that does not fit is refused, with or without `truncate`."""
    text = TextOptions(truncate=True, max_tokens=ROWS)
    with pytest.raises(ImagesTooLong, match=rf"at most {ROWS} tokens; its images and the words around them have \d+"):
        answer(embedder, media_of(image_of(7, 7)), outputs=COLBERT, text=text)
    answer(embedder, "fox " * 100, outputs=COLBERT, text=text)


@pytest.mark.parametrize(
    ("given", "options", "other"),
    [(["a fox", "image"], {}, "another part"), ("image", {"prompt": "Find: "}, "a prompt")],
    ids=["a text", "a prompt"],
)
def test_an_image_with_words_is_refused(embedder: Embedder, given: Any, options: dict[str, Any], other: str) -> None:
    """Models of pages read an image in words of their own."""
    image = media_of(image_of(9, 9))
    value = image if given == "image" else [image if part == "image" else part for part in given]
    with pytest.raises(InvalidField, match=f"an image and {other}; this model embeds images alone"):
        answer(embedder, value, outputs=COLBERT, text=TextOptions(**options))
