"""Truncates texts that are too long, or rejects them if the request forbids truncation. Pure functions.

A text is cut twice: by characters before it is tokenized, which bounds the cost of tokenization, then by tokens.
The special tokens around a text (CLS, SEP, end of text) always stay; tokens are cut from one side of the content.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from functools import cached_property

import msgspec
import numpy as np

from vectord.errors import InputTooLong
from vectord.schema import Int32, Side

# A token has 4 characters on average, but some have far more: spaces that are dropped, a line of dashes that is one
# token, a base64 word that is one unknown token. So the first 512 tokens may have 250 characters each (source:
# text-embeddings-inference). Long texts do not consist of such tokens only. With 250 characters for every token, a
# limit of 8192 tokens would admit 2 million characters, which take 1.2 GB to tokenize. With 32 for each further token,
# it admits 374 thousand, or 45 per token.
CHARACTERS_PER_TOKEN = 250
SHORT_TEXT_TOKENS = 512
CHARACTERS_PER_FURTHER_TOKEN = 32
# Characters after normalization per character before: NFKC of U+FDFA, NFD of a Hangul syllable.
LONGEST_EXPANSION, USUAL_EXPANSION = 18, 3
# Python sorts combining marks by insertion, and no other thread runs meanwhile: 128,000 at once took 16 s.
NORMALIZED_AT_ONCE = 64
PIECE_CHARACTERS = 32_768  # long texts are tokenized in pieces of this size, which bounds memory


class Limit(msgspec.Struct, frozen=True, dict=True):
    """A request's rule for texts that are too long. `limit_of` keeps those that are in use."""

    max_tokens: int
    truncate: bool
    side: Side = "right"
    model_tokens: int = 0  # the model's limit if the request sets a lower one, else 0
    model_characters: int | None = None  # the model's own limit of characters, if it has one

    @cached_property
    def max_characters(self) -> int:
        """The number of characters that are tokenized.

        It depends on the model's token limit even if the request has a lower one, so that the reported number of tokens
        is exact for ordinary texts.
        """
        tokens = max(self.max_tokens, self.model_tokens)
        short = min(tokens, SHORT_TEXT_TOKENS)
        most = CHARACTERS_PER_TOKEN * short + CHARACTERS_PER_FURTHER_TOKEN * (tokens - short)
        return most if self.model_characters is None else min(most, self.model_characters)

    @cached_property
    def surely_fits(self) -> int:
        """A text of so many characters has at most `max_characters` after any normalization."""
        return self.max_characters * USUAL_EXPANSION // LONGEST_EXPANSION

    def too_long(self, index: int | None, tokens: int) -> InputTooLong:
        return InputTooLong(
            "{field} must have at most {limit} tokens; got {given}", index=index, limit=self.max_tokens, given=tokens
        )


def check_size(
    size: int, most: int, what: str = "characters", *, index: int | None = None, field: str | None = None
) -> None:
    """Raises InputTooLong if there are more than `most`."""
    if size > most:
        template = "{field} must have at most {most} {what}; got {size}"
        raise InputTooLong(template, field=field, index=index, most=most, what=what, size=size)


def fit_characters(text: str, limit: Limit, index: int | None) -> str:
    """Return the text, cut to `limit.max_characters` if it is longer."""
    most = limit.max_characters
    window = text[:most] if limit.side == "right" else text[-most:]
    weight = max(len(window), _weight(window, most))
    size = max(len(text), weight)
    if size <= most:
        return text
    if not limit.truncate:
        check_size(size, most, index=index)
    kept = most * len(window) // weight
    return window[:kept] if limit.side == "right" else window[-kept:]


def _weight(text: str, most: int) -> int:
    """The length after normalization, which determines the tokenizer's memory: 374 thousand U+FDFA take 1.1 GB."""
    if text.isascii() or len(text) <= most * USUAL_EXPANSION // LONGEST_EXPANSION:
        return len(text)
    pieces = (text[start : start + NORMALIZED_AT_ONCE] for start in range(0, len(text), NORMALIZED_AT_ONCE))
    return sum(len(unicodedata.normalize("NFKC", piece)) for piece in pieces) // USUAL_EXPANSION


def fit_tokens(ids: Int32, specials: tuple[int, int], limit: Limit, index: int | None) -> Int32:
    """Return `ids` (n,), cut to `limit.max_tokens`. The special tokens at both ends stay: `specials` at the start and
    at the end. Callers cut type ids with the same function."""
    over = len(ids) - limit.max_tokens
    if over <= 0:
        return ids
    if not limit.truncate:
        raise limit.too_long(index, len(ids))
    first, last = specials
    if limit.side == "left":
        return np.concatenate((ids[:first], ids[first + over :]))
    end = len(ids) - last
    return np.concatenate((ids[: end - over], ids[end:]))


def keep(ids: Int32, count: int, side: Side) -> Int32:
    """Return the `count` ids of `ids` (n,) that remain when `side` is cut."""
    return ids[:count] if side == "right" else ids[len(ids) - count :]


def split_at_spaces(text: str, start: int = 0) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of consecutive pieces of at most PIECE_CHARACTERS, from `start` to the end of the text.

    A piece ends before a space. Tokenizers begin a word there, so the tokens are those of the whole text. If the second
    half of a piece has no space, one or two tokens at its end can differ.
    """
    while len(text) - start > PIECE_CHARACTERS:
        stop = start + PIECE_CHARACTERS
        space = text.rfind(" ", start + PIECE_CHARACTERS // 2, stop)
        yield start, stop if space == -1 else space
        start = stop if space == -1 else space
    yield start, len(text)
