"""Cuts texts that are too long, or rejects them if the request forbids truncation. Pure.

A text is cut twice: by characters before it is tokenized, so that an absurdly long text costs little, then by tokens.
The special tokens around a text (CLS, SEP, end of text) always stay; tokens are cut from one side of the content.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from vectord.errors import InputTooLong
from vectord.schema import Int32, Side

# A token has 4 characters on average, but a stretch of text may have far more: spaces that the tokenizer drops, a line
# of dashes that is one token, a base64 word that is one unknown token. So the first 512 tokens get 250 characters each
# (source: text-embeddings-inference). No long text is like that throughout. With 250 for every token, a limit
# of 8192 tokens would admit 2 million characters, which take 1.2 GB to tokenize; with 32 for each further token it
# admits 374 thousand, 45 a token.
CHARACTERS_PER_TOKEN = 250
SHORT_TEXT_TOKENS = 512
CHARACTERS_PER_FURTHER_TOKEN = 32
# Characters that normalization makes of one: NFKC of U+FDFA, NFD of a Hangul syllable.
LONGEST_EXPANSION, USUAL_EXPANSION = 18, 3
PIECE_CHARACTERS = 32_768  # a piece of a text that is tokenized in pieces, so that memory follows a piece


@dataclass(frozen=True, slots=True)
class Limit:
    """A request's rule for texts that are too long."""

    max_tokens: int
    truncate: bool
    side: Side = "right"
    model_tokens: int = 0  # the model's limit, if the request sets a lower one; else 0
    model_characters: int | None = None  # the model's own limit, which few have

    @property
    def max_characters(self) -> int:
        """From the model's token limit, not a lower one of the request, so that an ordinary text's length is exact."""
        tokens = max(self.max_tokens, self.model_tokens)
        short = min(tokens, SHORT_TEXT_TOKENS)
        most = CHARACTERS_PER_TOKEN * short + CHARACTERS_PER_FURTHER_TOKEN * (tokens - short)
        return most if self.model_characters is None else min(most, self.model_characters)

    def too_long(self, index: int | None, tokens: int) -> InputTooLong:
        return InputTooLong(
            "{field} must have at most {limit} tokens; got {given}", index=index, limit=self.max_tokens, given=tokens
        )


def fit_characters(text: str, limit: Limit, index: int | None) -> str:
    """The text, without the excess characters of the side that is cut if it is absurdly long.

    Raises InputTooLong if such a text may not be cut.
    """
    most = limit.max_characters
    window = text[:most] if limit.side == "right" else text[-most:]
    weight = max(len(window), _weight(window, most))
    size = max(len(text), weight)
    if size <= most:
        return text
    if not limit.truncate:
        raise InputTooLong("{field} must have at most {most} characters; got {size}", index=index, most=most, size=size)
    kept = most * len(window) // weight
    return window[:kept] if limit.side == "right" else window[-kept:]


def _weight(text: str, most: int) -> int:
    """The text's size after normalization: 374 thousand characters such as U+FDFA would cost the tokenizer 1.1 GB."""
    if text.isascii() or len(text) <= most * USUAL_EXPANSION // LONGEST_EXPANSION:
        return len(text)
    return len(unicodedata.normalize("NFKC", text)) // USUAL_EXPANSION


def fit_tokens(ids: Int32, specials: tuple[int, int], limit: Limit, index: int | None) -> Int32:
    """At most `limit.max_tokens` of `ids` (n,): the specials of both ends, and content from the side that is kept.

    specials: how many of the first and of the last ids are special; together fewer than max_tokens. Cuts type ids in
    the same way. Raises InputTooLong if there are more ids and they may not be cut.
    """
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
    """The `count` of `ids` (n,) that remain after a cut on this side."""
    return ids[:count] if side == "right" else ids[len(ids) - count :]


def split_at_spaces(text: str, start: int = 0) -> Iterator[tuple[int, int]]:
    """Runs of characters of at most PIECE_CHARACTERS, end to end, from `start`.

    They end before a space, where tokenizers begin a word anyway, so that a seam changes no token. If half a piece has
    no space, the seam changes one or two tokens.
    """
    while len(text) - start > PIECE_CHARACTERS:
        stop = start + PIECE_CHARACTERS
        space = text.rfind(" ", start + PIECE_CHARACTERS // 2, stop)
        yield start, stop if space == -1 else space
        start = stop if space == -1 else space
    yield start, len(text)
