"""Passages cut at their end to a number of their own tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.refusals import refuses
from tests.text.makers import ALL, LIGATURE, SENTENCES, byte_level, make_encoder, unigram, varied_texts, wordpiece

from vectord.errors import Untokenizable
from vectord.schema import TextLength
from vectord.text.sequence import CutText
from vectord.text.tokenizer import TextEncoder


@pytest.fixture(scope="module", params=ALL, ids=lambda make: make.__name__)
def encoder(request: Any, tmp_path_factory: pytest.TempPathFactory) -> TextEncoder:
    return make_encoder(tmp_path_factory.mktemp("passages"), request.param(), max_tokens=100)


TEXTS = st.lists(
    st.sampled_from([*" ".join(SENTENCES).split(), "a" * 90, "東京" * 40, "\U0001f44d" * 9, LIGATURE, "\n\n", " "])
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
).map(" ".join)


@example(texts=["a" * 600], max_tokens=1)
@given(texts=st.lists(TEXTS, min_size=1, max_size=4), max_tokens=st.integers(1, 99))
def test_a_passage_is_cut_to_a_beginning(encoder: TextEncoder, texts: list[str], max_tokens: int) -> None:
    """It has at most the given tokens, and a short text stays whole; tokens and characters that were cut are
    counted."""
    for text, cut in zip(texts, encoder.cut(texts, max_tokens), strict=True):
        tokenized = text[: len(text) - cut.characters_cut]
        tokens, left = encoder.count([tokenized, cut.text])
        assert tokenized.startswith(cut.text)
        assert left <= max_tokens
        assert cut.tokens_cut == tokens - left
        assert cut.text == tokenized if tokens <= max_tokens else cut.tokens_cut > 0
        assert not cut.characters_cut or len(text) > 250 * max_tokens


def test_as_many_tokens_as_fit_are_kept(tmp_path: Path) -> None:
    """Also inside words."""
    encoder = make_encoder(tmp_path, wordpiece())
    (cut,) = encoder.cut(["lazy dog " * 10], 7)
    assert cut == CutText("lazy dog " * 3 + "lazy", 13, 0)
    (word,) = make_encoder(tmp_path, byte_level()).cut(["antidisestablishmentarianism" * 3], 5)
    assert make_encoder(tmp_path, byte_level()).count([word.text]) == [5]


def test_a_character_of_many_tokens_is_whole_or_gone(tmp_path: Path) -> None:
    """A ligature of 18 letters does not fit in 5 tokens."""
    encoder = make_encoder(tmp_path, unigram())
    (cut,) = encoder.cut([LIGATURE * 2], 5)
    assert (cut.text, cut.tokens_cut) == ("", *encoder.count([LIGATURE * 2]))
    text = f"dog {LIGATURE}{LIGATURE}"
    (fits,) = encoder.count([text[:5]])
    assert [encoder.cut([text], most)[0].text for most in (fits, fits - 1)] == [text[:5], "dog"]


def test_a_limit_above_the_model_s_cuts_nothing(tmp_path: Path) -> None:
    """The model's own limit applies later, and the text is not tokenized twice."""
    encoder = make_encoder(tmp_path, wordpiece(), max_tokens=10)
    text = "dog " * 50
    for max_tokens in (10, 10**30):
        assert encoder.cut([text], max_tokens) == [CutText(text, 0, 0)]


def test_an_absurdly_long_passage_is_cut_by_characters_first(tmp_path: Path) -> None:
    """Its end is never tokenized, and counts as cut."""
    encoder = make_encoder(tmp_path, wordpiece())
    (cut,) = encoder.cut(["dog " * 1_000_000], 4)
    assert cut.text == "dog dog dog dog"
    assert cut.characters_cut == 4_000_000 - 1_000
    assert cut.whole(TextLength(6, 6)) == TextLength(6 + 246, 6, 3_999_000)


def test_a_part_of_the_passages_keeps_its_indexes(tmp_path: Path) -> None:
    """An error has the index among all passages."""
    encoder = make_encoder(tmp_path, wordpiece())
    texts = [*varied_texts(10), "\ud800"]
    assert encoder.cut(texts, 5, part=range(2, 4)) == encoder.cut(texts[2:4], 5)
    with refuses(Untokenizable, index=10):
        encoder.cut(texts, 5, part=range(9, 11))
