"""What is kept of a text that is too long, and the refusal when nothing may be cut. Pure; called by the other files.

Twice: by characters before tokenising, so that a text no model could read costs nothing, then by tokens. The special
tokens around a text (CLS, SEP, end of text) always stay; tokens go from one side of what is between them.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

import numpy as np

from vectord.errors import InputTooLong
from vectord.schema import Int32, Side

# A token has 4 characters on average. A stretch of text may be far from that: blanks that the tokenizer drops, a line
# of dashes that is one token, a base64 word that is one unknown. So 512 tokens get 250 characters each (source:
# text-embeddings-inference). No long text is like that throughout, and 250 a token would have 2 million characters
# tokenised, in 1.2 GB, for the 8192 tokens that count; 32 for each further token makes that 374 thousand, 45 a token.
CHARACTERS_PER_TOKEN = 250
SHORT_TEXT_TOKENS = 512
CHARACTERS_PER_FURTHER_TOKEN = 32
# Characters that normalising, which most tokenizers begin with, makes of one: NFKC of U+FDFA, NFD of a Hangul syllable.
LONGEST_EXPANSION, USUAL_EXPANSION = 18, 3


@dataclass(frozen=True, slots=True)
class Limit:
    """One request's rule for over-long inputs, and what the request calls them, for messages."""

    max_tokens: int
    truncate: bool
    side: Side
    field: str
    inputs: int
    reads: int = 0  # tokens the model reads, where the request asks for fewer

    @property
    def max_characters(self) -> int:
        """By what the model reads, so that what a request keeps of an ordinary text does not hide how long it is."""
        tokens = max(self.max_tokens, self.reads)
        short = min(tokens, SHORT_TEXT_TOKENS)
        return CHARACTERS_PER_TOKEN * short + CHARACTERS_PER_FURTHER_TOKEN * (tokens - short)

    def place(self, index: int) -> str:
        return f"`{self.field}`" if self.inputs == 1 else f"`{self.field}[{index}]`"

    def too_long(self, index: int, limit: int, unit: str, size: int) -> InputTooLong:
        message = f"{self.place(index)} must have at most {limit} {unit}; got {size}"
        if unit == "tokens":
            return InputTooLong(message, field=self.field, index=index, limit=limit, given=size)
        return InputTooLong(message, field=self.field, index=index)


def fit_characters(text: str, limit: Limit, index: int) -> str:
    """The text, or its beginning (its end, if the left side is cut) where it is absurdly long.

    Raises InputTooLong if it is and nothing may be cut.
    """
    most = limit.max_characters
    window = text[:most] if limit.side == "right" else text[-most:]
    weight = max(len(window), _weight(window, most))
    size = max(len(text), weight)
    if size <= most:
        return text
    if not limit.truncate:
        raise limit.too_long(index, most, "characters", size)
    kept = most * len(window) // weight
    return window[:kept] if limit.side == "right" else window[-kept:]


def _weight(text: str, most: int) -> int:
    """A text by what its tokenizer may see: 374 thousand characters such as U+FDFA would cost it 1.1 GB."""
    if text.isascii() or len(text) <= most * USUAL_EXPANSION // LONGEST_EXPANSION:
        return len(text)
    return len(unicodedata.normalize("NFKC", text)) // USUAL_EXPANSION


def fit_tokens(ids: Int32, specials: tuple[int, int], limit: Limit, index: int) -> Int32:
    """At most `limit.max_tokens` of `ids` (n,): the specials of both ends, and content from the side that is kept.

    specials: how many of the first and of the last ids are special; together fewer than max_tokens. Works on type
    ids too. Raises InputTooLong if there are more and nothing may be cut.
    """
    over = len(ids) - limit.max_tokens
    if over <= 0:
        return ids
    if not limit.truncate:
        raise limit.too_long(index, limit.max_tokens, "tokens", len(ids))
    first, last = specials
    if limit.side == "left":
        return np.concatenate((ids[:first], ids[first + over :]))
    end = len(ids) - last
    return np.concatenate((ids[: end - over], ids[end:]))


def keep(ids: Int32, count: int, side: Side) -> Int32:
    """`count` of `ids` (n,), without those of the side that is cut."""
    return ids[:count] if side == "right" else ids[len(ids) - count :]
