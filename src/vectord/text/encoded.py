"""Texts as models read them: what text/ makes on the tokenising threads and the engine reads. Plain values."""

from __future__ import annotations

from dataclasses import dataclass

from vectord.schema import Int32, TextLength


@dataclass(frozen=True, slots=True)
class EncodedText:
    """One input as the model reads it."""

    ids: Int32  # (n,)
    type_ids: Int32  # (n,)
    length: TextLength
    prompt_tokens: int = 0  # leading tokens that pooling leaves out: the prompt's, if the model wants that


@dataclass(frozen=True, slots=True)
class EncodedPair:
    """Two texts as the model reads them together. `query` and `passage` count their own tokens, without specials."""

    ids: Int32  # (n,)
    type_ids: Int32  # (n,)
    query: TextLength
    passage: TextLength
    length: TextLength  # of the whole pair, specials and template included


@dataclass(frozen=True, slots=True)
class EncodedColbert:
    """One input as a ColBERT model reads it, and the rows of the answer that are its vectors."""

    ids: Int32  # (n,)
    type_ids: Int32  # (n,)
    length: TextLength  # without mask tokens
    kept: Int32  # (m,) places in ids, rising
    attended: int  # only the first so many tokens are attended to; all n are read


@dataclass(frozen=True, slots=True)
class CutText:
    """What is left of a text whose end was cut off before anything was made of it."""

    text: str
    tokens_cut: int
    characters_cut: int  # beyond those tokens

    def whole(self, length: TextLength) -> TextLength:
        """The length of the text as it was, given that of what is left."""
        if not self.tokens_cut and not self.characters_cut:
            return length
        return TextLength(length.seen + self.tokens_cut, length.kept, length.characters_cut + self.characters_cut)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a document. Without overlap, the chunks that we cut laid end to end are the text."""

    start: int  # characters
    stop: int
    first: int  # of its tokens, counted in the document
    tokens: int  # of the document's own, specials not counted


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens of a document that the model reads together, and those of each chunk whose vector comes from here."""

    ids: Int32  # (n,)
    type_ids: Int32  # (n,)
    spans: Int32  # (chunks, 2) first and last + 1 row
    length: TextLength  # of what no window before it has read; what was cut from its chunks is seen and not kept
