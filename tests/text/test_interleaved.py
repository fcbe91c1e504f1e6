"""Inputs of texts and images as one text: in the order given, with marked rows for images, of which none is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from tests.checkpoints.reading import spec_of
from tests.pages import MERGE, PATCH, SIDE, write_pages
from tests.towers import image_of, media_of
from tokenizers import Tokenizer

from vectord.checkpoints.spec import ModelSpec, Tiling
from vectord.errors import ImagesTooLong, InputTooLong, InvalidField, ModelCannot
from vectord.schema import Input, TextOptions
from vectord.text import images
from vectord.text.sequence import ReadRequest, Texts
from vectord.text.tokenizer import TextEncoder

ROWS = (SIDE // PATCH // MERGE) ** 2  # of an image of one view
IMAGE, OTHER = media_of(image_of(9, 9)), media_of(image_of(9, 9, seed=1))


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    """A model whose images are single views, and may have texts and other images beside them."""
    found = spec_of(write_pages(tmp_path_factory.mktemp("model"), "colmodernvbert"))
    assert found.image_text is not None and found.images is not None and found.images.processor is not None
    processor = replace(found.images.processor, tiling=Tiling(longest_edge=SIDE, side=SIDE))
    return replace(
        found,
        image_text=replace(found.image_text, around="{image}", alone=False),
        images=replace(found.images, processor=processor),
    )


def read(spec: ModelSpec, *inputs: Input, truncate: bool = True, **options: Any) -> Texts:
    request = ReadRequest(inputs=inputs, options=TextOptions(**options), truncate=truncate)
    return TextEncoder(spec).read(request)


def words(spec: ModelSpec, texts: Texts, i: int = 0) -> str:
    """The tokens of a text, with | for each run of an image's rows."""
    tokenizer, sequence = Tokenizer.from_file(str(spec.tokenizer)), texts[i]
    shown, marks = [], sequence.type_ids.tolist()
    for place, token in enumerate(sequence.ids.tolist()):
        if not marks[place]:
            shown.append(tokenizer.id_to_token(token))
        elif not place or not marks[place - 1]:
            shown.append("|")
    return " ".join(shown)


def test_parts_keep_their_order(spec: ModelSpec) -> None:
    """With the prompt before them; the sequences of images are in the same order."""
    texts = read(spec, ["a fox", IMAGE, "dog", OTHER], prompt="a ")
    around, image = "<fake_token_around_image>", "<fake_token_around_image> <global-img> |"
    assert words(spec, texts) == f"[CLS] a a fox {image} {around} dog {image} {around} [SEP]"
    assert texts.images is not None and len(texts.images) == 2
    swapped = read(spec, ["a fox", OTHER, "dog", IMAGE], prompt="a ")
    assert swapped.images is not None and swapped.images.digests == texts.images.digests[::-1]
    assert np.array_equal(swapped.ids, texts.ids) and swapped.digests != texts.digests


def test_inputs_with_and_without_images_are_joined(spec: ModelSpec) -> None:
    """Each image belongs to its input, and a text is read as it is alone."""
    texts = read(spec, "a fox", ["birds", IMAGE], "water", OTHER)
    assert texts.images is not None
    assert [*texts.indexes] == [0, 1, 2, 3] and [*texts.images.indexes] == [1, 3]
    assert [length.pixels for length in texts.lengths] == [0, 81, 0, 81]
    assert [box is None for box in texts.boxes] == [True, False, True, False]
    assert texts.digests[0] == b"" and np.array_equal(texts[2].ids, read(spec, "water")[0].ids)


@pytest.mark.parametrize(("side", "kept"), [("right", "fox dog"), ("left", "dog fox")])
def test_only_texts_are_cut(spec: ModelSpec, side: str, kept: str) -> None:
    """From the side of the request, across an image, whose rows and special tokens all stay."""
    whole = read(spec, ["fox dog a", IMAGE, "dog fox"])
    most = int(whole.sizes[0]) - 3
    texts = read(spec, ["fox dog a", IMAGE, "dog fox"], max_tokens=most, truncate_side=side)
    found = words(spec, texts).replace("<fake_token_around_image>", "").replace("<global-img> |", "")
    assert found.split() == ["[CLS]", *kept.split(), "[SEP]"]
    length = texts.lengths[0]
    assert (length.kept, length.seen, length.truncated) == (most, most + 3, True)
    assert np.count_nonzero(texts.type_ids) == ROWS == np.count_nonzero(~np.isnan(texts.boxes[0][:, 0]))  # type: ignore[index, arg-type]


@pytest.mark.parametrize(
    ("value", "options", "error", "reason"),
    [
        (["fox dog", IMAGE], {"max_tokens": ROWS}, ImagesTooLong, "images and the words around them have"),
        (["fox dog", IMAGE], {"max_tokens": ROWS + 6, "truncate": False}, InputTooLong, "must have at most"),
        (["an <image> of a fox", IMAGE], {}, InvalidField, "contains <image>, which stands for images"),
        ([[5, 6][0], IMAGE], {}, InvalidField, "token ids next to an image"),
    ],
    ids=["only images", "not truncated", "the token of images", "token ids"],
)
def test_what_would_change_the_image_is_refused(
    spec: ModelSpec, value: Any, options: dict[str, Any], error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        read(spec, "a fox", value, **options)


def test_without_pillow_an_image_is_refused(spec: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it; texts are served."""
    monkeypatch.setattr(images, "find_spec", lambda name: None)
    assert read(spec, "a fox").images is None
    with pytest.raises(ModelCannot, match=r"Pillow.* pip install .*\[images\]"):
        read(spec, "a fox", IMAGE)
