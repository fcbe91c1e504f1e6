"""Token ids in place of a text: the model's own are used, others are rejected. So are files in base64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.refusals import refuses
from tests.text.makers import ALL, PLAIN, byte_level, content_of, make_encoder, qwen3, read, wordpiece
from tokenizers import AddedToken

from vectord.checkpoints.spec import Colbert
from vectord.errors import EmptyInput, ForeignIds, InputTooLong, InvalidField
from vectord.schema import ChunkOptions, TextOptions
from vectord.text import cl100k
from vectord.text.tokenizer import TextEncoder


@pytest.fixture(autouse=True)
def no_other_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    """As without the extra vectord[cl100k]."""
    monkeypatch.setattr(cl100k, "decode", lambda ids: None)


def ids_of(encoder: TextEncoder, *inputs: Any, options: TextOptions = PLAIN) -> list[list[int]]:
    return [one.ids.tolist() for one in read(encoder, inputs, options)]


@pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
def test_ids_between_the_model_s_special_tokens_are_its_own(make: Any, tmp_path: Path) -> None:
    """As its tokenizer makes them of a text, also of an empty one."""
    encoder = make_encoder(tmp_path, make())
    (whole,) = ids_of(encoder, "lazy dog")
    assert ids_of(encoder, whole) == [whole]
    (empty,) = ids_of(encoder, "")
    assert ids_of(encoder, empty) == [empty]


@pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
def test_other_ids_are_rejected_with_the_way_out(make: Any, tmp_path: Path) -> None:
    """Content alone, one special token of two, or special tokens in the wrong place may be of any vocabulary."""
    encoder = make_encoder(tmp_path, make())
    (whole,) = ids_of(encoder, "lazy dog")
    content = content_of(encoder, "lazy dog")
    halves = [whole[:-1]] if whole[-1] != content[-1] else []
    for ids in (content, [*content, *content], whole[::-1], *halves):
        with refuses(ForeignIds, index=1) as rejected:
            ids_of(encoder, "fine", ids)
        assert "check_embedding_ctx_length=False" in rejected.value.message


def test_a_product_may_declare_ids_to_be_the_model_s_own(tmp_path: Path) -> None:
    """For APIs whose contract says so, they are used unchanged."""
    encoder = make_encoder(tmp_path, wordpiece())
    content = content_of(encoder, "lazy dog")
    assert ids_of(encoder, content, options=TextOptions(own_ids=True)) == [content]


def test_an_empty_list_of_ids_is_rejected(tmp_path: Path) -> None:
    """It has not even special tokens."""
    encoder = make_encoder(tmp_path, wordpiece())
    with refuses(EmptyInput, index=1):
        ids_of(encoder, "a", [])
    with pytest.raises(EmptyInput):
        encoder.decode([[]], skip_special_tokens=True)


def test_a_tokenizer_without_special_tokens_recognizes_its_ids_by_their_text(tmp_path: Path) -> None:
    """They are the ids that it makes again of the decoded text."""
    encoder = make_encoder(tmp_path, byte_level())
    (whole,) = ids_of(encoder, "The quick brown fox")
    assert ids_of(encoder, whole) == [whole]
    letters = [content_of(encoder, letter)[0] for letter in "The"]
    assert letters != content_of(encoder, "The")
    for ids in (letters, [encoder.vocab_size]):
        with pytest.raises(ForeignIds):
            ids_of(encoder, ids)
    with pytest.raises(InputTooLong, match="token ids"):
        ids_of(encoder, whole * 5000)


def test_ids_that_the_tokenizer_would_not_make_are_marked(tmp_path: Path) -> None:
    """Where all ids count as the model's own. The same ids are read."""
    encoder, own_ids = make_encoder(tmp_path, byte_level()), TextOptions(own_ids=True)
    (whole,) = ids_of(encoder, "The quick brown fox")
    letters = [content_of(encoder, letter)[0] for letter in "The"]
    inputs = ["The", whole, letters, whole * 5000, [*whole, "fox"]]
    sequences = read(encoder, inputs, own_ids)
    assert [sequence.length.foreign for sequence in sequences] == [False, False, True, True, False]
    assert sequences[2].ids.tolist() == letters


@pytest.mark.parametrize("facts", [{"prompts": {"p": "quick"}}, {"colbert": Colbert(dimensions=8)}], ids=str)
def test_marked_ids_may_be_read_as_their_text(facts: dict[str, Any], tmp_path: Path) -> None:
    """Under a prompt, and by a ColBERT model."""
    encoder = make_encoder(tmp_path, wordpiece(), **facts)
    options = TextOptions(own_ids=True, prompt_name="p" if "prompts" in facts else None)
    (whole,) = ids_of(encoder, "dog")
    sequences = read(encoder, ["dog", whole, whole[1:]], options)
    assert [sequence.length.foreign for sequence in sequences] == [False, False, True]


def test_colbert_models_take_ids_too(tmp_path: Path) -> None:
    """They are decoded and encoded again, with marker and mask tokens."""
    tokenizer = wordpiece()
    tokenizer.add_tokens([AddedToken("[Q] ", normalized=True)])
    colbert = Colbert(dimensions=8, query_prefix="[Q] ", query_length=9, expand_queries=True)
    encoder = make_encoder(tmp_path, tokenizer, colbert=colbert)
    (own,) = ids_of(encoder, "lazy dog")
    expected, given = ids_of(encoder, "lazy dog", own, options=TextOptions(kind="query"))
    assert given == expected != own
    with pytest.raises(ForeignIds):
        ids_of(encoder, own[1:], options=TextOptions(kind="query"))


def test_one_special_token_is_enough_where_the_model_has_one(tmp_path: Path) -> None:
    """Qwen3's end of text, which no other vocabulary has at that place."""
    encoder = make_encoder(tmp_path, qwen3())
    (whole,) = ids_of(encoder, "dog")
    assert ids_of(encoder, whole[-1:]) == [whole[-1:]]
    with pytest.raises(ForeignIds):
        ids_of(encoder, [*whole, whole[0]])


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.mark.parametrize(
    "text",
    [
        f"data:image/png;base64,{PIXEL}",
        f" DATA:image/JPEG;name=a.jpg;base64,{PIXEL}\n",
        f"data:application/pdf;base64,{PIXEL[:40]}\r\n{PIXEL[40:]}",
        f"data:audio/wav;base64,{PIXEL * 9999}",
    ],
    ids=["image", "spaces and parameters", "lines", "long"],
)
@pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
def test_a_file_in_base64_is_not_read_as_a_text(make: Any, text: str, tmp_path: Path) -> None:
    """As an input, as a document that is cut into chunks or to a limit, and as a passage."""
    encoder = make_encoder(tmp_path, make())
    with refuses(InvalidField, index=1):
        read(encoder, ["a dog", text], PLAIN)
    with pytest.raises(InvalidField, match="an image or another file in base64, where a text"):
        encoder.chunk(text, ChunkOptions(max_tokens=5))
    with refuses(InvalidField, index=0):
        encoder.cut([text], 5)


@pytest.mark.parametrize(
    "text",
    [
        "data:image/png;base64,iVBORw0KGgo= is a pixel",
        f"The logo is data:image/png;base64,{PIXEL}",
        "data: an image",
        "data:text/plain;base64,aGVsbG8=",
    ],
)
def test_a_text_about_a_file_is_read(text: str, tmp_path: Path) -> None:
    encoder = make_encoder(tmp_path, wordpiece())
    assert len(read(encoder, [text], TextOptions(truncate=True))) == 1
