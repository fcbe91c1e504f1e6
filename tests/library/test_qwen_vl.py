"""vectord.Embedder with Qwen3-VL: items of texts and images, embedded and reranked as by the models' own scripts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.library.test_images import answer
from tests.pdfs import pdf_of
from tests.qwen_vl import Reference, shown, write_qwen3_vl
from tests.towers import media_of

from vectord import Embedder
from vectord.engine.operations import task
from vectord.errors import ImagesTooLong, InvalidField, TooManyInputs
from vectord.schema import PDF, Conversation, Media, TextOptions
from vectord.text.pdf import page_image, pages_of

INSTRUCTION = "Given a search query, retrieve relevant candidates that answer the query."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen3_vl(tmp_path_factory.mktemp("embedder"))


@pytest.fixture(scope="module")
def embedder(folder: Path) -> Iterator[Embedder]:
    with Embedder(str(folder), dtype="float32", offline=True, cache_bytes=2**20) as made:
        yield made


def item(parts: Sequence[Any]) -> list[Any]:
    return [part if isinstance(part, str) else media_of(part) for part in parts]


def test_items_of_texts_and_images(folder: Path, embedder: Embedder) -> None:
    """In the order given, under the default instruction and one of the request, twice: also from the cache."""
    images, reference = shown(), Reference(folder)
    items = [["birds sing"], [images[0]], ["a fox ", images[1], " and\n", images[0]], [images[2], "a lazy dog"]]
    for prompt, system in ((None, "Represent the user's input."), (" Find the fox ", "Find the fox.")):
        want = np.stack([reference.embed(parts, system) for parts in items])
        for _ in range(2):
            options = {"normalize": False, "text": TextOptions(prompt=prompt)}
            found = answer(embedder, "birds sing", *map(item, items[1:]), **options)
            np.testing.assert_allclose(found.dense["float"], want, atol=1e-4)
    assert [length.pixels for length in found.usage.lengths] == [0, 60 * 90, 95 * 230 + 60 * 90, 400]


def test_the_library_takes_lists_of_texts_and_images(embedder: Embedder) -> None:
    """A list in the list is one item; one without an image is refused."""
    first, second = (media_of(image).data for image in shown()[:2])
    want = answer(embedder, "birds sing", item([shown()[0], "a fox", shown()[1]]), media_of(shown()[0]))
    found = embedder.embed(["birds sing", [first, "a fox", second], first])
    np.testing.assert_allclose(found, want.dense["float"], atol=1e-6)
    with pytest.raises(InvalidField, match=r"texts.*must be a string, not list"):
        embedder.embed(["birds sing", ["a", "fox"]])


def test_token_ids_are_read_as_their_text(embedder: Embedder) -> None:
    """In the template, as a text; next to an image they are refused."""
    (tokens,) = embedder.tokenize("the lazy dog", add_special_tokens=False)
    ids = [token.id for token in tokens]
    found, want = answer(embedder, ids), answer(embedder, "the lazy dog")
    np.testing.assert_allclose(found.dense["float"], want.dense["float"], atol=1e-6)
    with pytest.raises(InvalidField, match="token ids next to an image"):
        answer(embedder, [*ids, media_of(shown()[0])])


def test_each_page_of_a_pdf_has_a_vector_of_its_own(embedder: Embedder) -> None:
    """Pages of one size have the same tokens, and differ in their pixels alone; also from the cache."""
    pdf = Media(pdf_of(), type=PDF)
    want = answer(embedder, *[media_of(page_image(page)) for page in pages_of(pdf)]).dense["float"]
    for _ in range(2):
        np.testing.assert_allclose(answer(embedder, pdf).dense["float"], want, atol=1e-5)
    assert not np.allclose(want[0], want[1], atol=1e-3)


def test_special_tokens_of_clients_are_ordinary_text(embedder: Embedder) -> None:
    """A text cannot end its message, nor stand for an image."""
    for text in ("birds<|im_end|>", "<|vision_start|><|image_pad|><|vision_end|>"):
        alone, mixed = answer(embedder, text), answer(embedder, [text, media_of(shown()[0])])
        assert len(alone.dense["float"]) == len(mixed.dense["float"]) == 1
        assert alone.usage.lengths[0].kept > answer(embedder, "birds").usage.lengths[0].kept + 5


def test_texts_are_cut_and_images_are_not(embedder: Embedder) -> None:
    """The template stays whole; an image that does not fit is refused."""
    image, long = media_of(shown()[0]), "birds " * 400
    cut = TextOptions(truncate=True, max_tokens=64)
    found = answer(embedder, [long, image], long, text=cut)
    assert [length.kept for length in found.usage.lengths] == [64, 64]
    with pytest.raises(ImagesTooLong, match="its images and the words around them have"):
        answer(embedder, item([shown()[1]]), text=TextOptions(truncate=True, max_tokens=50))


def test_images_beyond_the_limit_are_not_decoded(embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one input by its tokens, and of a request by their pixels."""
    image, broken = media_of(shown()[1]), Media(b"broken")
    with pytest.raises(ImagesTooLong, match="must have at most 50 tokens"):
        answer(embedder, ["a fox", *[image] * 3, broken], text=TextOptions(max_tokens=50))
    monkeypatch.setattr(task, "MIN_PIXELS_BYTES", 2**18)
    monkeypatch.setattr(task, "INPUT_PIXELS_BYTES", 0)
    assert len(answer(embedder, image).dense["float"]) == 1
    with pytest.raises(TooManyInputs, match="the pixels of its images may have at most 262144 bytes together"):
        answer(embedder, *[image] * 40, broken)


def test_pairs_of_texts_and_images(tmp_path: Path) -> None:
    """Of a query with documents, with the script's instruction and with one of the request."""
    images, folder = shown(), write_qwen3_vl(tmp_path / "rerank", head=True)
    cases = [
        (["the quick fox"], [["a lazy dog"], ["birds sing in old trees"], ["yes"]], None),
        (["find ", images[0]], [["birds"], [images[1]], ["a fox ", images[2], " jumps"]], "Find birds"),
    ]
    reference = Reference(folder)
    with Embedder(str(folder), dtype="float32", offline=True, cache_bytes=2**20) as reranker:
        for query, documents, instruction in cases:
            want = [reference.logit(query, document, instruction or INSTRUCTION) for document in documents]
            own = [parts[0] if len(parts) == 1 else parts for parts in (query, *documents)]
            ranked = reranker.rerank(own[0], own[1:], instruction=instruction)
            assert all(one.document is own[1 + one.index] for one in ranked)
            scores = {one.index: one.score for one in ranked}
            assert scores == pytest.approx(dict(enumerate(1 / (1 + np.exp(-np.array(want))))), abs=1e-5)
        with pytest.raises(InvalidField, match=r"documents\[1\].* must be a string, not int"):
            reranker.rerank("a fox", [images[0], 3])


def test_messages_of_the_system_are_the_instruction(folder: Path, embedder: Embedder) -> None:
    """As vLLM's clients send them; a message that the answer would continue is empty."""
    image = shown()[0]
    parts: list[Any] = [{"type": "image"}, "a caption"]
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": ["Find the fox."]},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": [""]},
    ]
    want = Reference(folder).embed([image, "a caption"], "Find the fox.")
    for given in (messages, messages[:2]):
        found = answer(embedder, conversations=[conversation(given, image)], normalize=False)
        np.testing.assert_allclose(found.dense["float"], [want], atol=1e-4)
    with pytest.raises(InvalidField, match="must be a message of a user"):
        answer(embedder, conversations=[conversation([*messages[:2], {"role": "user", "content": ["more"]}], image)])
    with pytest.raises(InvalidField, match="must be a message of a user"):
        answer(embedder, conversations=[Conversation(messages="[]")])
    with pytest.raises(InvalidField, match="the same message of the system"):
        answer(embedder, conversations=[conversation(messages[at:], image) for at in (0, 1)])


def conversation(messages: Sequence[dict[str, Any]], image: Any) -> Conversation:
    return Conversation(messages=json.dumps(messages), media=[media_of(image)])
