"""Where sentences begin, in many scripts and in linear time."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vectord.text.chunks import sentence_starts


def split(text: str) -> list[str]:
    places = [0, *sentence_starts(text), len(text)]
    return [text[start:stop] for start, stop in pairwise(places)]


@pytest.mark.parametrize(
    "sentences",
    [
        ["One ends here. ", "Two! ", "Three? ", "Four"],
        ["He said: \u201cIt is.\u201d ", "She left (at last!) ", "Alone."],
        ["Version 3.14 of a.b.c is approx. three years old. ", "Next."],
        ["Wait... ", "What?! ", "No."],
        ["wait... what? ", "no"],
        ["A title\n\n", "A line\nbroken in two.\n", "Next"],
        ["one.\n\n", "two small ones.\n\n\n", "three"],
        ["東京は首都です。", "そうですか\uff1f", "「はい。」", "終わり"],
        ["नमस्ते। ", "आप कैसे हैं? ", "ठीक"],
        ["Это первое. ", "Это второе."],
        [" leading. ", "And trailing.  "],
    ],
    ids=["latin", "quotes", "full stops inside", "dots", "small", "lines", "blank lines", "japanese", "hindi",
         "russian", "blanks"],
)  # fmt: skip
def test_sentences_of_many_scripts(sentences: list[str]) -> None:
    """Spaces after a sentence belong to it."""
    assert split("".join(sentences)) == sentences


@given(text=st.text(st.sampled_from('ab A.!?\u3002\n\r )"\u2026')) | st.text())
def test_starts_are_ascending_and_inside(text: str) -> None:
    """Joined sentences are the text, and none is empty."""
    starts = sentence_starts(text)
    assert starts == sorted(set(starts))
    assert all(0 < start < len(text) for start in starts)


@pytest.mark.parametrize("pattern", [".", "\n", " ", "a", ".)", "。", ". ", "a.\n", ".\u201d!", "\n "], ids=ascii)
def test_a_text_of_1_mb_is_read_in_linear_time(pattern: str) -> None:
    """Quadratic time would take hours."""
    text = pattern * (1_000_000 // len(pattern)) + "a"
    assert len(sentence_starts(text)) < len(text)
