"""Texts that are far too long are cut by characters, on one side, before they are tokenized."""

from __future__ import annotations

import unicodedata

import pytest

from vectord.errors import InputTooLong
from vectord.schema import Side
from vectord.text.truncation import NORMALIZED_AT_ONCE, Limit, fit_characters


def limit(max_tokens: int, *, truncate: bool = True, side: Side = "right") -> Limit:
    return Limit(max_tokens, truncate, side)


@pytest.mark.parametrize(
    ("max_tokens", "characters"), [(128, 32_000), (512, 128_000), (513, 128_032), (8192, 373_760), (32_768, 1_160_192)]
)
def test_a_long_limit_allows_fewer_characters_a_token(max_tokens: int, characters: int) -> None:
    """More than any long text needs (4 a token), and far less than 250 each."""
    assert limit(max_tokens).max_characters == characters


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
