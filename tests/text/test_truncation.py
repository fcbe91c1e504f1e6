"""Truncation keeps special tokens, cuts one side, and reports correct numbers."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vectord.errors import InputTooLong
from vectord.schema import Side
from vectord.text.truncation import CHARACTERS_PER_TOKEN, NORMALIZED_AT_ONCE, Limit, fit_characters, fit_tokens, keep


def limit(max_tokens: int, *, truncate: bool = True, side: Side = "right") -> Limit:
    return Limit(max_tokens, truncate, side)


@st.composite
def framed(draw: st.DrawFn) -> tuple[np.ndarray, tuple[int, int], int]:
    """Ids with negative special tokens around ascending content, and a limit with room for content."""
    first, last = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    content = draw(st.integers(0, 60))
    ids = np.array([*range(-first, 0), *range(content), *range(-last, 0)], np.int32)
    return ids, (first, last), first + last + draw(st.integers(1, 40))


@settings(max_examples=300, deadline=None)
@given(case=framed(), side=st.sampled_from(["right", "left"]))
def test_a_text_is_cut_to_the_limit(case: tuple[np.ndarray, tuple[int, int], int], side: Side) -> None:
    """As much as fits: all special tokens, and the beginning or end of the content."""
    ids, (first, last), max_tokens = case
    kept = fit_tokens(ids, (first, last), limit(max_tokens, side=side), 0)
    assert len(kept) == min(len(ids), max_tokens)
    assert kept.dtype == np.int32
    np.testing.assert_array_equal(kept[:first], ids[:first])
    np.testing.assert_array_equal(kept[len(kept) - last :], ids[len(ids) - last :])
    content, kept_content = ids[first : len(ids) - last], kept[first : len(kept) - last]
    room = len(kept_content)
    expected = content[:room] if side == "right" else content[len(content) - room :]
    np.testing.assert_array_equal(kept_content, expected)


@settings(max_examples=100, deadline=None)
@given(case=framed())
def test_without_truncation_a_text_is_whole_or_rejected(case: tuple[np.ndarray, tuple[int, int], int]) -> None:
    """Nothing is cut."""
    ids, specials, max_tokens = case
    if len(ids) <= max_tokens:
        assert fit_tokens(ids, specials, limit(max_tokens, truncate=False), 0) is ids
        return
    with pytest.raises(InputTooLong) as caught:
        fit_tokens(ids, specials, limit(max_tokens, truncate=False), 2)
    assert caught.value.message == f"input 2 must have at most {max_tokens} tokens; got {len(ids)}"
    assert (caught.value.field, caught.value.index) == (None, 2)


@settings(max_examples=100, deadline=None)
@given(length=st.integers(0, 1200), max_tokens=st.integers(1, 4), side=st.sampled_from(["right", "left"]))
def test_an_absurdly_long_text_is_cut_by_characters(length: int, max_tokens: int, side: Side) -> None:
    """250 characters a token from the side that is kept; shorter texts stay unchanged."""
    text = "".join(chr(0x100 + i % 97) for i in range(length))
    kept = fit_characters(text, limit(max_tokens, side=side), 0)
    assert len(kept) == min(length, max_tokens * CHARACTERS_PER_TOKEN)
    assert text.startswith(kept) if side == "right" else text.endswith(kept)


def test_an_absurdly_long_text_is_rejected_before_it_is_tokenized() -> None:
    """Counting its tokens would cost as much as reading it."""
    with pytest.raises(InputTooLong, match="at most 1000 characters; got 1001"):
        fit_characters("x" * 1001, limit(4, truncate=False), 0)


@pytest.mark.parametrize(
    ("max_tokens", "characters"), [(128, 32_000), (512, 128_000), (513, 128_032), (8192, 373_760), (32_768, 1_160_192)]
)
def test_a_long_limit_allows_fewer_characters_a_token(max_tokens: int, characters: int) -> None:
    """More than any long text needs (4 a token), and far less than 250 each."""
    assert limit(max_tokens).max_characters == characters


@given(length=st.integers(0, 9), count=st.integers(0, 9))
def test_keeping_a_number_of_tokens(length: int, count: int) -> None:
    """From the side that is not cut; the number may be 0."""
    ids = np.arange(length, dtype=np.int32)
    count = min(count, length)
    assert keep(ids, count, "right").tolist() == list(range(count))
    assert keep(ids, count, "left").tolist() == list(range(length - count, length))


@pytest.mark.parametrize("side", ["right", "left"])
def test_characters_count_by_their_normalized_length(side: Side) -> None:
    """NFKC makes 18 characters of U+FDFA: 1 MB of it must not become a gigabyte."""
    allowed = limit(4, side=side)
    kept = fit_characters("\ufdfa" * 1000, allowed, 0)
    assert 0 < len(unicodedata.normalize("NFKC", kept)) <= 3 * allowed.max_characters
    with pytest.raises(InputTooLong, match="at most 1000 characters; got 6000"):
        fit_characters("\ufdfa" * 1000, limit(4, truncate=False), 0)


def test_a_text_is_normalized_in_short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time grows with the square of a run of combining marks, and no other thread runs meanwhile."""
    normalized: list[str] = []
    real = unicodedata.normalize
    monkeypatch.setattr(unicodedata, "normalize", lambda form, text: normalized.append(text) or real(form, text))
    marks = "\u0316\u0301" * 500
    assert fit_characters(marks, limit(4), 0) == marks
    assert "".join(normalized) == marks
    assert max(map(len, normalized)) == NORMALIZED_AT_ONCE


@pytest.mark.parametrize("text", ["한" * 1000, "ǖ" * 1000, "ﬁ" * 1000], ids=["Hangul", "two accents", "ligature"])
def test_ordinary_scripts_keep_every_character(text: str) -> None:
    """Even if their letters decompose."""
    assert fit_characters(text, limit(4), 0) == text
