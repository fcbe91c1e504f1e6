"""A whole document as tokens and their places in its text, however long: what chunks.py and windows.py cut.

Called by chunking.py on the tokenising threads. The text is tokenised in pieces, so that memory follows a piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vectord.errors import InputTooLong
from vectord.schema import Int32
from vectord.text.plain import PlainTokenizer, Source
from vectord.text.truncation import Limit

# A book has 500 thousand. This many in Chinese, with a token each, take 6 s of one thread and 150 MB (MiniLM).
DOCUMENT_LIMIT_CHARACTERS = 2_000_000
PIECE_CHARACTERS = 32_768


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """Tokens without specials, and where they are. n tokens."""

    characters: int
    ids: Int32  # (n,)
    starts: Int32  # (n,) characters, never falling
    stops: Int32  # (n,) characters, never falling
    begins_character: npt.NDArray[np.bool_]  # (n,) whether the text can be cut before this token
    begins_word: npt.NDArray[np.bool_]  # (n,) and no word is split by that

    def character(self, token: int) -> int:
        """Where the text is cut before this token; 0 before the first, the text's end behind the last one."""
        if token == 0:
            return 0
        return int(self.starts[token]) if token < len(self.ids) else self.characters

    def tokens(self, start: int, stop: int) -> range:
        """Which tokens have some of the characters start to stop."""
        first = int(np.searchsorted(self.stops, start, side="right"))
        return range(first, max(first, int(np.searchsorted(self.starts, stop, side="left"))))


def read_document(plain: PlainTokenizer, text: str, limit: Limit, index: int) -> Document:
    """The tokens of `text`. Raises InputTooLong above DOCUMENT_LIMIT_CHARACTERS, Untokenizable."""
    if len(text) > DOCUMENT_LIMIT_CHARACTERS:
        message = f"{limit.place(index)} must have at most {DOCUMENT_LIMIT_CHARACTERS} characters; got {len(text)}"
        raise InputTooLong(message, field=limit.field, index=index)
    pieces = list(_pieces(text))
    sources = [Source(index, text[start:stop]) for start, stop in pieces]
    rows: list[Int32] = [np.zeros((4, 0), np.int32)]
    for (start, _), encoding in zip(pieces, plain.encodings(sources, limit, specials=False, offsets=True), strict=True):
        places = np.array(encoding.offsets, np.int32).reshape(-1, 2).T + np.int32(start)
        words = [-1 if word is None else word for word in encoding.word_ids]
        begins_word = np.diff(np.array(words, np.int32), prepend=np.int32(-2)) != 0
        rows.append(np.stack((np.array(encoding.ids, np.int32), *places, begins_word.astype(np.int32))))
    ids, starts, stops, begins_word = np.concatenate(rows, axis=1)
    starts, stops = np.maximum.accumulate(starts), np.maximum.accumulate(stops)
    behind = np.concatenate((np.zeros(1, np.int32), stops[:-1]))[: len(stops)]
    # Tokens may be of no characters: RoBERTa's places leave out the blanks. None of those makes a chunk by itself.
    begins_character = (starts >= behind) & (np.diff(starts, prepend=np.int32(-1)) > 0) & (starts < len(text))
    plain.check_known(ids, limit, index)
    return Document(len(text), ids, starts, stops, begins_character, begins_character & (begins_word == 1))


def _pieces(text: str) -> Iterator[tuple[int, int]]:
    """Runs of characters of at most PIECE_CHARACTERS, end to end.

    Cut before a space, where the tokenizers of this field begin a word in any case, so that a seam changes no token; in
    the middle of half a piece without a space it changes one or two.
    """
    start = 0
    while len(text) - start > PIECE_CHARACTERS:
        stop = start + PIECE_CHARACTERS
        space = text.rfind(" ", start + PIECE_CHARACTERS // 2, stop)
        yield start, stop if space == -1 else space
        start = stop if space == -1 else space
    yield start, len(text)
