"""Late chunking: a document as windows that the model reads together, and the rows of each chunk in them.

    tokens    |----------------------------------------------------|
    chunks    |  0  |  1   |  2  |  3   |  4  |  5   |  6 |    7   |
    windows   |0 1 2---------------|
                           |..3 4 5-------------|
                                           |..6 7------------------|

A window begins with up to `overlap` tokens of context (..), followed by its own chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np

from vectord.errors import InputTooLong, InvalidField, ModelCannot, Untokenizable
from vectord.schema import Int32, TextLength
from vectord.text.chunks import read_document
from vectord.text.options import limit_of
from vectord.text.plain import PlainTokenizer
from vectord.text.sequence import Chunk, ReadRequest, TokenSequence

# A quarter of a window is read again from the window before, so that its first chunk has context too.
OVERLAP_PARTS = 4
NO_TOKENS: Int32 = np.zeros(0, np.int32)


class WindowEncoder:
    def __init__(self, plain: PlainTokenizer, max_tokens: int) -> None:
        self._plain = plain
        self._max_tokens = max_tokens
        self._prefix, self._suffix = (np.array(ids, np.int32) for ids in (plain.frame.prefix, plain.frame.suffix))

    def read(
        self, request: ReadRequest, chunks: Sequence[Sequence[Chunk]], prompt: str, part: Sequence[int]
    ) -> Iterator[TokenSequence]:
        """Each document in windows, overlapping if there are several; their spans, in order, are those of its `chunks`.

        The prompt goes before every window. With `request.truncate`, only the first tokens are read of a chunk that
        does not fit in.
        """
        for index in part:
            if chunks[index]:
                yield from self._read(request, cast(str, request.inputs[index]), chunks[index], prompt, index)

    def _read(
        self, request: ReadRequest, text: str, chunks: Sequence[Chunk], prompt: str, index: int
    ) -> list[TokenSequence]:
        if self._plain.frame.has_type_ids:
            raise ModelCannot("This model's tokens have types, which late chunking does not support.")
        with_specials = request.options.add_special_tokens
        prefix, suffix = (self._prefix, self._suffix) if with_specials else (NO_TOKENS, NO_TOKENS)
        document = read_document(self._plain, text, index)
        # Without the prompt's last space, which a tokenizer would make part of the text's first word.
        before = np.concatenate((prefix, self._plain.content(prompt.rstrip())))
        frame = len(before) + len(suffix)
        room = limit_of(request, self._max_tokens, frame + 1, "right").max_tokens - frame

        def window(content: Int32, spans: Int32, length: TextLength) -> TokenSequence:
            ids = np.concatenate((before, content, suffix))
            return self._plain.sequence(ids, length, index, spans=spans)

        if chunks[0].rows is not None:  # all read at once
            if len(document.ids) > room:
                template = "{field} has {given} tokens; late chunking reads {limit} at once"
                raise InputTooLong(template, index=index, limit=room + frame, given=len(document.ids) + frame)
            spans, total = np.array([chunk.rows for chunk in chunks], np.int32), frame + len(document.ids)
            return [window(document.ids, spans, TextLength(total, total))]
        whole = [range(chunk.first, chunk.first + chunk.tokens) for chunk in chunks]
        _check_fit(whole, len(document.ids), room, request.truncate, index)
        if not len(document.ids):  # each chunk is read as an empty text, by the specials and the prompt
            if not frame:
                raise Untokenizable("{field} has no tokens", index=index)
            spans = np.tile(np.array([0, frame], np.int32), (len(chunks), 1))
            return [window(NO_TOKENS, spans, TextLength(frame, frame))]
        tokens = [chunk[:room] for chunk in whole]
        overlap = min(room // OVERLAP_PARTS, room - max(map(len, tokens)))
        laid = list(lay_windows(tokens, len(document.ids), room, overlap))
        lengths = _lengths([place for place, _ in laid], [whole[own.stop - 1].stop for _, own in laid], frame)
        return [
            window(document.ids[place.start : place.stop], _spans(tokens, own, len(before) - place.start), length)
            for (place, own), length in zip(laid, lengths, strict=True)
        ]


def lay_windows(chunks: Sequence[range], tokens: int, room: int, overlap: int) -> Iterator[tuple[range, range]]:
    """Windows of at most `room` of a document's `tokens`, each with the places of its own chunks.

    chunks: their tokens, ascending. overlap + the longest chunk <= room.
    """
    start = 0
    while start < len(chunks):
        first = max(0, chunks[start].start - overlap) if tokens > room else 0
        limit = min(first + room, tokens)
        stop = start + 1
        while stop < len(chunks) and chunks[stop].stop <= limit:
            stop += 1
        yield range(first, limit), range(start, stop)
        start = stop


def _check_fit(chunks: Sequence[range], document: int, room: int, truncate: bool, index: int) -> None:
    """Raises InputTooLong for a chunk that does not fit in and may not be cut, or if there is no room at all;
    InvalidField for a chunk without tokens in a document with tokens."""
    longest = max(range(len(chunks)), key=lambda place: len(chunks[place]))
    if len(chunks[longest]) > room and (not truncate or room < 1):
        way_out = "Make the prompt shorter" if room < 1 else "Make the chunk shorter, or set {body.truncate}"
        raise InputTooLong(
            "{field} has {given} tokens in its chunk {chunk}, counted from 0; {limit} are read at once, besides "
            f"special tokens and prompt. {way_out}",
            index=index,
            limit=max(room, 0),
            given=len(chunks[longest]),
            chunk=longest,
        )
    if document and not all(chunks):
        empty = next(i for i, chunk in enumerate(chunks) if not chunk)
        raise InvalidField(
            "{field} has no tokens in its chunk {chunk}, counted from 0: there is nothing to pool",
            index=index,
            chunk=empty,
        )


def _lengths(windows: Sequence[range], ends: Sequence[int], frame: int) -> Iterator[TextLength]:
    """The tokens that each window reads and no earlier one; the frame counts the first time only.

    ends: where the last chunk of each window would end without truncation.
    """
    read = windows[0].start
    for place, (window, end) in enumerate(zip(windows, ends, strict=True)):
        kept = window.stop - max(window.start, read) + (0 if place else frame)
        following = windows[place + 1].start if place + 1 < len(windows) else end
        yield TextLength(seen=kept + max(0, min(end, following) - window.stop), kept=kept)
        read = window.stop


def _spans(tokens: Sequence[range], own: range, shift: int) -> Int32:
    """The rows (chunks, 2) of a window's own chunks. shift: from a token's place to its row."""
    return np.array([(tokens[i].start, tokens[i].stop) for i in own], np.int32) + np.int32(shift)
