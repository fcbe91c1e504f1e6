"""A document's tokens cut into chunks. Pure; called by chunking.py for each document."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from vectord.errors import InvalidField
from vectord.schema import ChunkOptions
from vectord.text.document import Document
from vectord.text.encoded import Chunk

# One character can be 18 tokens (U+FDFA, under NFKC); a chunk shorter than a character could not be cut from the text.
MIN_CHUNK_TOKENS = 20


def check_options(options: ChunkOptions, room: int) -> None:
    """room: tokens of content that the model reads at most. Raises InvalidField.

    Overlap is at most half a chunk: at nearly a whole one, a document would be read once for each of its tokens.
    """
    least = min(MIN_CHUNK_TOKENS, room)
    if not least <= options.max_tokens <= room:
        message = f"`chunk.max_tokens` must be between {least} and {room}; got {options.max_tokens}"
        raise InvalidField(message, field="chunk.max_tokens", limit=room, given=options.max_tokens)
    most = options.max_tokens // 2
    if not 0 <= options.overlap_tokens <= most:
        message = f"`chunk.overlap_tokens` must be between 0 and {most}, half a chunk; got {options.overlap_tokens}"
        raise InvalidField(message, field="chunk.overlap_tokens", limit=most, given=options.overlap_tokens)


def cut(document: Document, sentence_starts: Sequence[int], options: ChunkOptions) -> list[Chunk]:
    """Chunks in order, each of at most `options.max_tokens`; one of a document without tokens.

    By sentences: as many whole sentences as fit; one that does not fit is cut by tokens. By tokens: as many as fit, cut
    at a word in the chunk's second half, else between characters. A chunk begins in the one before by at most
    `options.overlap_tokens`, at a sentence or a word.
    """
    if not len(document.ids):
        return [Chunk(0, document.characters, 0, 0)]
    cuts = _Cuts(document, sentence_starts, options)
    return [
        Chunk(document.character(first), document.character(stop), first, stop - first)
        for first, stop in _ranges(cuts, len(document.ids))
    ]


def _ranges(cuts: _Cuts, tokens: int) -> Iterator[tuple[int, int]]:
    start = done = 0
    while done < tokens:
        stop = cuts.stop(start)
        if stop <= done:  # nothing new fits behind the overlap
            start = done
            continue
        yield start, stop
        start, done = cuts.restart(start, stop), stop


class _Cuts:
    """Where a document may be cut, best places first."""

    def __init__(self, document: Document, sentence_starts: Sequence[int], options: ChunkOptions) -> None:
        self._tokens = len(document.ids)
        self._max_tokens = options.max_tokens
        self._overlap_tokens = options.overlap_tokens
        self._by_sentences = options.by == "sentences"
        self._characters = np.flatnonzero(document.begins_character)
        self._words = np.flatnonzero(document.begins_word)
        # The token with a sentence's first character, and with the blank before it where that is part of the token.
        first = np.searchsorted(document.stops, np.array(sentence_starts, np.int32), side="right")
        begins_sentence = np.zeros(self._tokens + 1, np.bool_)
        begins_sentence[first] = True
        self._sentences = np.flatnonzero(begins_sentence[:-1] & document.begins_character)

    def stop(self, start: int) -> int:
        """Where a chunk that begins with token `start` ends, past `start`."""
        limit = start + self._max_tokens
        if limit >= self._tokens:
            return self._tokens
        half = start + self._max_tokens // 2
        whole_sentences = _last(self._sentences, start, limit) if self._by_sentences else None
        return whole_sentences or _last(self._words, half, limit) or _last(self._characters, start, limit) or limit

    def restart(self, start: int, stop: int) -> int:
        """Where the chunk behind that from `start` to `stop` begins."""
        places = self._sentences if self._by_sentences else self._words
        first = bisect_left(places, max(stop - self._overlap_tokens, start + 1))
        return min(int(places[first]), stop) if first < len(places) else stop


def _last(places: npt.NDArray[np.intp], start: int, limit: int) -> int | None:
    """The last of rising `places` that is past `start` and not past `limit`."""
    at = bisect_right(places, limit) - 1
    return int(places[at]) if at >= 0 and places[at] > start else None
