"""vectord.Embedder with images: their vectors lie in the space of the texts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models import write_bert
from tests.pdfs import COLOURS, pdf_of
from tests.towers import TEXTS, image_of, images, media_of, reference_vectors, write_towers

from vectord import Embedder
from vectord.checkpoints.checkpoint import open_checkpoint
from vectord.config import Config, ModelConfig
from vectord.engine.models import opening
from vectord.errors import ConfigError, InvalidField, ModelCannot, TooManyInputs, VectordError
from vectord.library import embedder as library
from vectord.schema import PDF, EmbedRequest, EmbedResult, Media, Request
from vectord.text import images as images_of_text
from vectord.text.images import decoded
from vectord.text.pdf import page_image, pages_of

each_family = pytest.mark.parametrize("folder", ["CLIP", "Siglip", "Siglip2"], indirect=True)


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    family = getattr(request, "param", "CLIP")
    return write_towers(tmp_path_factory.mktemp(family), family)


@pytest.fixture(scope="module")
def embedder(folder: Path) -> Iterator[Embedder]:
    with Embedder(str(folder), dtype="float32", offline=True, cache_bytes=2**20) as made:
        yield made


def ask(embedder: Embedder, request: Request) -> Any:
    """The engine's result, which has more facts than the library returns."""
    return embedder._run(partial(embedder._engine.answer, request, library.CALLER))


def answer(embedder: Embedder, *inputs: Any, **options: Any) -> EmbedResult:
    result = ask(embedder, EmbedRequest(inputs=inputs, **options))
    assert isinstance(result, EmbedResult)
    return result


@each_family
def test_texts_and_images_in_one_call(folder: Path, embedder: Embedder, tmp_path: Path) -> None:
    """In any order; an image as a path, as the bytes of a file, or as Pillow's."""
    family, shown = folder.name[:-1], images()  # without pytest's number
    of_texts, of_images = reference_vectors(folder, family, TEXTS, shown)
    shown[0].save(tmp_path / "a.png")
    given = [TEXTS[0], tmp_path / "a.png", media_of(shown[1]).data, TEXTS[1], shown[2]]
    want = np.stack([of_texts[0], of_images[0], of_images[1], of_texts[1], of_images[2]])
    np.testing.assert_allclose(embedder.embed(given, normalize=False), want, atol=1e-4)
    np.testing.assert_allclose(embedder.embed(shown[3], normalize=False), of_images[3], atol=1e-4)


def test_many_images_are_read_in_parts(embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of photos does not fit the memory at once; the order stays."""
    monkeypatch.setattr(library, "IMAGES_PER_REQUEST", 2)
    shown = images()
    each = np.stack([embedder.embed(image) for image in shown])
    np.testing.assert_allclose(embedder.embed(shown), each, atol=1e-5)


@each_family
def test_rows_are_counted_and_answers_cached(folder: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image has its rows as tokens, and no characters; its file is known the second time."""
    image, other = (media_of(image_of(40, 50, seed=seed)) for seed in (40, 41))
    rows = {"CLIP": 17, "Siglip": 16, "Siglip2": 20}[folder.name[:-1]]
    first = answer(embedder, image, "a fox")
    assert (first.usage.lengths[0].kept, first.usage.characters) == (rows, 5)
    read: list[Media] = []
    monkeypatch.setattr(images_of_text, "decoded", lambda media, index: read.append(media) or decoded(media, index))
    again = answer(embedder, image, other)
    assert read == [other]
    assert np.array_equal(again.dense["float"][0], first.dense["float"][0])
    assert not np.allclose(again.dense["float"][1], first.dense["float"][0])


def test_a_known_image_is_not_decoded_again(embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its header is read, for its rows and its facts; of a page of a PDF its size."""
    given = [media_of(image_of(70, 50, seed=seed)) for seed in (1, 2)] + [Media(pdf_of(), type=PDF)]
    first = answer(embedder, *given)
    read: list[Media] = []
    monkeypatch.setattr(images_of_text, "decoded", lambda media, index: read.append(media) or decoded(media, index))
    again = answer(embedder, *given)
    assert not read
    assert np.array_equal(again.dense["float"], first.dense["float"])
    assert again.usage.lengths == first.usage.lengths
    other = media_of(image_of(70, 50, seed=3))
    answer(embedder, given[0], other)
    assert read == [other]


def test_a_pdf_has_a_row_for_each_page(embedder: Embedder, tmp_path: Path) -> None:
    """In its place among texts and images. A single one gives a matrix; Embeddings have the pages."""
    (tmp_path / "a.pdf").write_bytes(pdf_of())
    pages = [page_image(page) for page in pages_of(Media(pdf_of(), type=PDF))]
    given = ["a fox", tmp_path / "a.pdf", images()[0], pdf_of(COLOURS[:1])]
    want = embedder.embed(["a fox", *pages, images()[0], pages[0]])
    np.testing.assert_allclose(embedder.embed(given), want, atol=1e-5)
    np.testing.assert_allclose(embedder.embed(tmp_path / "a.pdf"), want[1:4], atol=1e-5)
    assert embedder.embed(pdf_of(COLOURS[:1])).shape == (1, embedder.dimensions)
    result = answer(embedder, "a fox", Media(pdf_of(), type=PDF), media_of(images()[0]))
    assert [(row.index, row.page) for row in result.pages] == [(0, None), (1, 1), (1, 2), (1, 3), (2, None)]


def test_a_broken_pdf_fails_alone(embedder: Embedder) -> None:
    """With `partial`; without it, the error has the index of the file, which is not that of its row."""
    good, broken = Media(pdf_of(), type=PDF), Media(pdf_of()[:200], type=PDF)
    result = answer(embedder, good, broken, media_of(images()[0]), partial=True)
    assert {row: error.index for row, error in result.failures.items()} == {3: 1}
    assert (result.pages[3].index, result.pages[3].page) == (1, None)
    whole = answer(embedder, good, media_of(images()[0]))
    np.testing.assert_allclose(result.dense["float"][[0, 1, 2, 4]], whole.dense["float"], atol=1e-6)
    with pytest.raises(InvalidField, match=r"`texts\[1\]`: the PDF is broken"):
        embedder.embed([good.data, broken.data])
    with pytest.raises(InvalidField, match=r"`texts\[1\]` is a broken or truncated image"):
        embedder.embed([good.data, media_of(images()[0]).data[:200]])
    with pytest.raises(TooManyInputs, match="at most 100 pages in all"):
        answer(embedder, good, Media(pdf_of(COLOURS * 33), type=PDF))


def test_a_broken_image_fails_alone(embedder: Embedder) -> None:
    """With `partial`, the others have their vectors; without it, the error has the index of the input."""
    image, broken = media_of(images()[0]), Media(media_of(images()[0]).data[:200])
    result = answer(embedder, "a fox", broken, image, partial=True)
    assert {index: error.index for index, error in result.failures.items()} == {1: 1}
    whole = answer(embedder, "a fox", image)
    np.testing.assert_allclose(result.dense["float"][[0, 2]], whole.dense["float"], atol=1e-6)
    with pytest.raises(InvalidField, match=r"`texts\[1\]` is a broken or truncated image"):
        embedder.embed(["a fox", broken.data, images()[0]])


def test_a_model_of_texts_refuses_images(tmp_path: Path) -> None:
    """Alone, among texts, and joined with a text."""
    with Embedder(str(write_bert(tmp_path)), pooling="mean", offline=True) as embedder:
        for given in (Media(b"x"), ["a text", Media(b"x")]):
            with pytest.raises(VectordError, match="an image; this model embeds texts only") as caught:
                answer(embedder, "a fox", given)
            assert caught.value.index == 1


def test_an_image_with_a_text_is_no_input_of_two_networks(embedder: Embedder) -> None:
    """Each network reads its own kind of input, and a vector of only one of them would be wrong."""
    with pytest.raises(InvalidField, match="an image and a text; this model embeds each of them alone"):
        answer(embedder, ["a fox", media_of(images()[0])])
    with pytest.raises(InvalidField, match="several images; this model embeds each of them alone"):
        answer(embedder, [media_of(images()[0])] * 2)


def test_without_pillow_texts_are_served(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image is refused with the command that installs it."""
    monkeypatch.setattr(opening, "find_spec", lambda name: None)
    with Embedder(str(folder), offline=True) as embedder:
        assert embedder.embed("a fox").shape == (embedder.dimensions,)
        with pytest.raises(ModelCannot, match=r"pip install .*\[images\]"):
            embedder.embed(["a fox", b"x"])


def test_a_backend_without_images_is_refused(folder: Path) -> None:
    """At the start, not with the first image."""
    with pytest.raises(ConfigError, match="has two networks, which the transformers backend does not compute"):
        Embedder(str(folder), offline=True, backend="transformers")


@pytest.mark.parametrize("field", ["prompt", "prompt_name"])
def test_a_prompt_is_refused_next_to_an_image(embedder: Embedder, field: str) -> None:
    """The network of images reads none, and an image without it would not be what the caller asked for."""
    for given in ([images()[0]], ["a fox", images()[0]]):
        with pytest.raises(InvalidField, match=f"`{field}` is for texts"):
            embedder.embed(given, **{field: "query"})


@each_family
def test_each_network_needs_memory_for_its_own_weights(folder: Path) -> None:
    """One file has both; together they need 16 bits for each of its numbers."""
    config = Config(model=ModelConfig(models=(str(folder),), offline=True))
    (source,) = opening.open_models(config)
    assert source.images is not None
    numbers = sum(weight.array.size for weight in open_checkpoint(source.spec.weights).values())
    assert source.memory_bytes + source.images.memory_bytes == pytest.approx(2 * numbers, abs=8)  # scale and bias


def test_the_fake_tells_images_apart(folder: Path) -> None:
    """Without a network, too."""
    with Embedder(str(folder), offline=True, backend="fake") as embedder:
        one, other, again = embedder.embed([images()[0], images()[1], images()[0]])
    assert np.array_equal(one, again) and not np.allclose(one, other)
