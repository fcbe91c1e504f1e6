"""Documents cut into chunks, by tokens or by sentences, or where the client has cut them.

A document is tokenized as a whole, in pieces so that memory follows a piece, and cut between tokens.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from vectord.errors import InvalidField
from vectord.schema import ChunkOptions, Int32, Span
from vectord.text.plain import PlainTokenizer, Source
from vectord.text.sequence import Chunk
from vectord.text.truncation import check_size, split_at_spaces

# A book has 500 thousand. This many in Chinese, with a token each, take 6 s of one thread and 150 MB (MiniLM).
DOCUMENT_LIMIT_CHARACTERS = 2_000_000
# One character can be 18 tokens (U+FDFA, under NFKC); a chunk shorter than a character could not be cut from the text.
MIN_CHUNK_TOKENS = 20


class TokenizedDocument(msgspec.Struct, frozen=True, eq=False):
    """n tokens without specials, and their places in the text."""

    characters: int
    ids: Int32  # (n,)
    starts: Int32  # (n,) characters, never falling
    stops: Int32  # (n,) characters, never falling
    begins_character: npt.NDArray[np.bool_]  # (n,) whether the text can be cut before this token
    begins_word: npt.NDArray[np.bool_]  # (n,) and the cut splits no word

    def character(self, token: int) -> int:
        """The character at which a cut before this token falls: 0 for the first, the text's end after the last."""
        if token == 0:
            return 0
        return int(self.starts[token]) if token < len(self.ids) else self.characters

    def tokens(self, start: int, stop: int) -> range:
        """The tokens that have some of the characters start to stop."""
        first = int(np.searchsorted(self.stops, start, side="right"))
        return range(first, max(first, int(np.searchsorted(self.starts, stop, side="left"))))


def read_document(
    plain: PlainTokenizer, text: str, index: int | None = None, *, max_tokens: int | None = None
) -> TokenizedDocument:
    """The tokens of `text`; stops after more than `max_tokens` tokens."""
    check_size(len(text), DOCUMENT_LIMIT_CHARACTERS, index=index)
    pieces = list(split_at_spaces(text))
    sources = [Source(index, text[start:stop]) for start, stop in pieces]
    columns: list[Int32] = [np.zeros((4, 0), np.int32)]
    tokens = characters = 0
    for (start, stop), encoding in zip(pieces, plain.encodings(sources, specials=False), strict=True):
        offsets = np.array(encoding.offsets, np.int32).reshape(-1, 2).T + np.int32(start)
        words = [-1 if word is None else word for word in encoding.word_ids]
        begins_word = np.diff(np.array(words, np.int32), prepend=np.int32(-2)) != 0
        columns.append(np.stack((np.array(encoding.ids, np.int32), *offsets, begins_word.astype(np.int32))))
        tokens, characters = tokens + len(words), stop
        if max_tokens is not None and tokens > max_tokens:
            break
    ids, starts, stops, begins_word = np.concatenate(columns, axis=1)
    starts, stops = np.maximum.accumulate(starts), np.maximum.accumulate(stops)
    previous_stops = np.concatenate((np.zeros(1, np.int32), stops[:-1]))[: len(stops)]
    # A token may have no characters: the offsets of RoBERTa leave out spaces. Such a token cannot be a chunk alone.
    begins_character = (starts >= previous_stops) & (np.diff(starts, prepend=np.int32(-1)) > 0) & (starts < characters)
    plain.check_known(ids, index)
    return TokenizedDocument(characters, ids, starts, stops, begins_character, begins_character & (begins_word == 1))


# A rule instead of a library: sentences are packed into chunks, so a wrong boundary after "Dr." matters only if a chunk
# ends there, and the libraries are slow, unmaintained, or need ICU. Linear in the text's length for any text: each
# match begins where the last one ended and never backtracks.
# Ends a sentence before a space: Latin, then the full stops of Arabic, Urdu, Hindi, Armenian, Amharic and Khmer.
_MARKS = ".!?\u2026\u061f\u06d4\u0964\u0965\u0589\u1362\u17d4"
_WIDE_MARKS = "\u3002\uff01\uff1f\uff61"  # ends one anywhere: Chinese and Japanese have no spaces
_CLOSERS = "\"')}\\]\u201d\u2019\u00bb\u300d\u300f\uff09\u3011\u300b"  # quotes and brackets that may follow
_ENDS = re.compile(rf"(?P<mark>[{_MARKS}]++|[{_WIDE_MARKS}]++)[{_CLOSERS}]*+(?P<blank>\s*+)|\n\s*+")


def sentence_starts(text: str) -> list[int]:
    """Ascending character offsets, without 0 and the text's end; spaces after a sentence belong to it.

    A sentence ends at . ! ? and similar marks before a space, at wide marks anywhere, and at an empty line. It does not
    end at a full stop before a lowercase letter, as in "approx. three" (rule SB8 of Unicode's annex 29, shortened).
    """
    return [match.end() for match in _ENDS.finditer(text) if match.end() < len(text) and _ends(text, match)]


def _ends(text: str, match: re.Match[str]) -> bool:
    mark = match["mark"]
    if mark is None:
        return match[0].count("\n") > 1
    if mark[0] in _WIDE_MARKS or match["blank"].count("\n") > 1:
        return True
    lowercase_follows = mark[-1] in ".\u2026" and text[match.end()].islower()
    return bool(match["blank"]) and not lowercase_follows


def chunk_document(
    plain: PlainTokenizer, text: str, how: ChunkOptions | Sequence[Span], room: int, max_chunks: int | None = None
) -> list[Chunk]:
    """The document's chunks, at least one. room: the most tokens of content that the model reads. Stops after more than
    `max_chunks` chunks; the caller refuses them."""
    if not isinstance(how, ChunkOptions):
        document = read_document(plain, text)
        chunks = []
        for span in how:
            # A space at the end is part of the next word's token, so it does not count.
            part = text[span.start : span.stop]
            start, stop = span.start + len(part) - len(part.lstrip()), span.start + len(part.rstrip())
            tokens = document.tokens(start, stop) if start < stop else range(0)
            chunks.append(Chunk(span.start, span.stop, tokens.start, len(tokens)))
        return chunks
    if how.by == "rows":
        return list(_rows(plain, text, how.max_tokens, max_chunks))
    least, most = min(MIN_CHUNK_TOKENS, room), how.max_tokens // 2
    if not least <= how.max_tokens <= room:
        raise InvalidField(
            "{field} must be between {least} and {limit}; got {given}",
            field="chunk.max_tokens",
            least=least,
            limit=room,
            given=how.max_tokens,
        )
    # At an overlap of nearly a whole chunk, a document would be read once for each of its tokens.
    if not 0 <= how.overlap_tokens <= most:
        raise InvalidField(
            "{field} must be between 0 and {limit}, half a chunk; got {given}",
            field="chunk.overlap_tokens",
            limit=most,
            given=how.overlap_tokens,
        )
    document = read_document(plain, text, max_tokens=None if max_chunks is None else max_chunks * how.max_tokens)
    return _cut(document, sentence_starts(text[: document.characters]) if how.by == "sentences" else (), how)


def _rows(plain: PlainTokenizer, text: str, size: int, max_chunks: int | None) -> Iterator[Chunk]:
    """Chunks of `size` rows of the text with its special tokens. One of special tokens alone has no characters."""
    document = read_document(plain, text, max_tokens=None if max_chunks is None else max_chunks * size)
    before, tokens = len(plain.frame.prefix), len(document.ids)
    total = before + tokens + len(plain.frame.suffix)
    for start in range(0, total, size):
        stop = min(start + size, total)
        own = slice(*np.clip((start - before, stop - before), 0, tokens))
        read = np.flatnonzero(document.starts[own] < document.stops[own]) + own.start  # some tokens have no characters
        first, last = (int(document.starts[read[0]]), int(document.stops[read[-1]])) if len(read) else (0, 0)
        yield Chunk(first, last, int(own.start), int(own.stop - own.start), (start, stop))


def _cut(document: TokenizedDocument, starts: Sequence[int], options: ChunkOptions) -> list[Chunk]:
    """Chunks in order, each of at most `options.max_tokens`; one of a document without tokens. starts: of sentences.

    By sentences: as many whole sentences as fit; one that does not fit is cut by tokens. By tokens: as many as fit, cut
    at a word in the chunk's second half, else between characters. A chunk begins in the one before by at most
    `options.overlap_tokens`, at a sentence or a word.
    """
    total, by_sentences = len(document.ids), options.by == "sentences"
    if not total:
        return [Chunk(0, document.characters, 0, 0)]
    characters, words = np.flatnonzero(document.begins_character), np.flatnonzero(document.begins_word)
    # The token with a sentence's first character, or with the space before it if the token begins with that.
    begins_sentence = np.zeros(total + 1, np.bool_)
    begins_sentence[np.searchsorted(document.stops, np.array(starts, np.int32), side="right")] = True
    sentences = np.flatnonzero(begins_sentence[:-1] & document.begins_character)
    chunks: list[Chunk] = []
    start = done = 0
    while done < total:
        stop, limit = total, start + options.max_tokens
        if limit < total:
            half = start + options.max_tokens // 2
            whole_sentences = _last(sentences, start, limit) if by_sentences else None
            stop = whole_sentences or _last(words, half, limit) or _last(characters, start, limit) or limit
        if stop <= done:  # nothing new fits after the overlap
            start = done
            continue
        chunks.append(Chunk(document.character(start), document.character(stop), start, stop - start))
        places = sentences if by_sentences else words
        first = bisect_left(places, max(stop - options.overlap_tokens, start + 1))
        start, done = min(int(places[first]), stop) if first < len(places) else stop, stop
    return chunks


def _last(places: npt.NDArray[np.intp], start: int, limit: int) -> int | None:
    """The last of the ascending `places` that is above `start` and at most `limit`."""
    at = bisect_right(places, limit) - 1
    return int(places[at]) if at >= 0 and places[at] > start else None
