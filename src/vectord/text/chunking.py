"""Documents cut into chunks: to be embedded one by one, or as parts of what the model reads (late chunking).

tokenizer.py calls `Chunker` on the tokenising threads. document.py reads the text, sentences.py and chunks.py cut it,
windows.py lays out what is read together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from vectord.errors import InputTooLong, InvalidField, ModelCannot, Untokenizable
from vectord.schema import ChunkOptions, Int32, Span, TextLength, TextOptions
from vectord.text.chunks import check_options, cut
from vectord.text.document import Document, read_document
from vectord.text.encoded import Chunk, Window
from vectord.text.options import max_tokens_of
from vectord.text.plain import PlainTokenizer
from vectord.text.sentences import sentence_starts
from vectord.text.truncation import Limit
from vectord.text.windows import lay_windows

# One part in so many of a window is read again from the window before, so that its first chunk has a context, too.
WINDOWS_PER_OVERLAP = 4
NO_TOKENS: Int32 = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class _WindowFrame:
    """What stands around every window of a text."""

    before: Int32  # (n,) specials and prompt
    behind: Int32  # (m,)

    @property
    def rows(self) -> int:
        return len(self.before) + len(self.behind)


class Chunker:
    """Chunks for one model."""

    def __init__(self, plain: PlainTokenizer, max_tokens: int) -> None:
        self._plain = plain
        self._max_tokens = max_tokens
        self._room = max_tokens - sum(plain.frame.specials)
        self._prefix, self._suffix = (np.array(ids, np.int32) for ids in (plain.frame.prefix, plain.frame.suffix))

    def chunk(self, text: str, options: ChunkOptions, limit: Limit, index: int) -> list[Chunk]:
        """See TextEncoder.chunk."""
        check_options(options, self._room)
        document = read_document(self._plain, text, limit, index)
        return cut(document, sentence_starts(text) if options.by == "sentences" else (), options)

    def chunk_at(self, text: str, spans: Sequence[Span], limit: Limit, index: int) -> list[Chunk]:
        """See TextEncoder.chunk_at."""
        document = read_document(self._plain, text, limit, index)
        return [_chunk(document, text, span) for span in spans]

    def encode_windows(
        self, text: str, chunks: Sequence[Chunk], prompt: str, options: TextOptions, limit: Limit, index: int
    ) -> list[Window]:
        """See TextEncoder.encode_windows."""
        if self._plain.frame.has_type_ids:
            raise ModelCannot("This model's tokens have types, with which late chunking does not work.")
        prefix, suffix = (self._prefix, self._suffix) if options.add_special_tokens else (NO_TOKENS, NO_TOKENS)
        document = read_document(self._plain, text, limit, index)
        # Without its last blank, which a tokenizer would make part of the text's first word.
        before = np.concatenate((prefix, self._plain.content(prompt.rstrip())))
        frame = _WindowFrame(before, suffix)
        room = max_tokens_of(options, self._max_tokens, frame.rows + 1) - frame.rows
        whole = [range(chunk.first, chunk.first + chunk.tokens) for chunk in chunks]
        _check_fit(whole, len(document.ids), room, limit, index)
        if not len(document.ids):
            return [self._empty(frame, len(chunks), limit, index)]
        tokens = [chunk[:room] for chunk in whole]
        overlap = min(room // WINDOWS_PER_OVERLAP, room - max(map(len, tokens)))
        laid = list(lay_windows(tokens, len(document.ids), room, overlap))
        lengths = _lengths([window for window, _ in laid], [whole[own.stop - 1].stop for _, own in laid], frame.rows)
        return [
            self._window(
                frame, document.ids[window.start : window.stop], _spans(tokens, own, window, len(before)), length
            )
            for (window, own), length in zip(laid, lengths, strict=True)
        ]

    def _window(self, frame: _WindowFrame, content: Int32, spans: Int32, length: TextLength) -> Window:
        ids = np.concatenate((frame.before, content, frame.behind))
        return Window(ids, self._plain.no_types(ids), spans, length)

    def _empty(self, frame: _WindowFrame, chunks: int, limit: Limit, index: int) -> Window:
        """A text without tokens: its chunks are what an empty text is, the specials."""
        if not frame.rows:
            message = f"{limit.place(index)} has no tokens at all"
            raise Untokenizable(message, field=limit.field, index=index)
        spans = np.tile(np.array([0, frame.rows], np.int32), (chunks, 1))
        return self._window(frame, NO_TOKENS, spans, TextLength(frame.rows, frame.rows))


def _chunk(document: Document, text: str, span: Span) -> Chunk:
    """The caller's own. Its tokens do not begin with the blank that is at its end: that is the next word's."""
    part = text[span.start : span.stop]
    start, stop = span.start + len(part) - len(part.lstrip()), span.start + len(part.rstrip())
    tokens = document.tokens(start, stop) if start < stop else range(0)
    return Chunk(span.start, span.stop, tokens.start, len(tokens))


def _check_fit(chunks: Sequence[range], document: int, room: int, limit: Limit, index: int) -> None:
    """Raises InputTooLong for a chunk that is too long where nothing may be cut, or where nothing fits in at all;
    InvalidField for one without tokens among others that have some."""
    longest = max(range(len(chunks)), key=lambda place: len(chunks[place]))
    if len(chunks[longest]) > room and (not limit.truncate or room < 1):
        message = (
            f"{limit.place(index)} has {len(chunks[longest])} tokens in its chunk {longest}, counted from 0; "
            f"{max(room, 0)} are read at once, beside special tokens and prompt"
        )
        raise InputTooLong(message, field=limit.field, index=index, limit=max(room, 0), given=len(chunks[longest]))
    if document and not all(chunks):
        empty = next(i for i, chunk in enumerate(chunks) if not chunk)
        message = (
            f"{limit.place(index)} has no tokens in its chunk {empty}, counted from 0: nothing to take the mean of"
        )
        raise InvalidField(message, field=limit.field, index=index)


def _lengths(windows: Sequence[range], ends: Sequence[int], frame: int) -> Iterator[TextLength]:
    """What each window reads that none before it has, the frame the first time only.

    ends: where the last chunk of each would end if nothing had been cut from it.
    """
    read = windows[0].start
    for place, (window, end) in enumerate(zip(windows, ends, strict=True)):
        kept = window.stop - max(window.start, read) + (0 if place else frame)
        following = windows[place + 1].start if place + 1 < len(windows) else end
        yield TextLength(seen=kept + max(0, min(end, following) - window.stop), kept=kept)
        read = window.stop


def _spans(tokens: Sequence[range], own: range, window: range, shift: int) -> Int32:
    """The rows (chunks, 2) in the window of the chunks that are its own; shift: rows before its first token."""
    rows = [(tokens[i].start, tokens[i].stop) for i in own]
    return np.array(rows, np.int32) + np.int32(shift - window.start)
