"""Documents cut into chunks: to be embedded one by one, or as parts of what the model reads (late chunking).

tokenizer.py calls `Chunker` on the tokenising threads. document.py reads the text, sentences.py and chunks.py cut it,
windows.py lays out what is read together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from vectord.errors import InvalidField, ModelCannot, Untokenizable
from vectord.schema import ChunkOptions, Int32
from vectord.text.chunks import check_options, cut
from vectord.text.document import read_document
from vectord.text.encoded import Chunk, Window
from vectord.text.plain import PlainTokenizer
from vectord.text.sentences import sentence_starts
from vectord.text.truncation import Limit
from vectord.text.windows import lay_windows

# One part in so many of a window is read again from the window before, so that its first chunk has a context, too.
WINDOWS_PER_OVERLAP = 4


class Extent(Protocol):
    """Characters of a text: a chunk, as the engine brings it back."""

    @property
    def start(self) -> int: ...
    @property
    def stop(self) -> int: ...


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

    def encode_windows(
        self, text: str, chunks: Sequence[Extent], prompt: str, limit: Limit, index: int
    ) -> list[Window]:
        """See TextEncoder.encode_windows."""
        if self._plain.frame.has_type_ids:
            raise ModelCannot("This model's tokens have types, with which late chunking does not work.")
        document = read_document(self._plain, text, limit, index)
        # Without its last blank, which a tokenizer would make part of the text's first word.
        before = np.concatenate((self._prefix, self._plain.content(prompt.rstrip())))
        tokens = [range(document.token(chunk.start), document.token(chunk.stop)) for chunk in chunks]
        room = self._max_tokens - len(before) - len(self._suffix)
        longest = max(map(len, tokens))
        if longest > room:
            message = f"`chunk.max_tokens` must be at most {max(room, 0)} beside this prompt; got {longest}"
            raise InvalidField(message, field="chunk.max_tokens")
        if not longest:
            return [self._empty(before, len(chunks), limit, index)]
        overlap = min(room // WINDOWS_PER_OVERLAP, room - longest)
        return [
            self._window(before, document.ids[window.start : window.stop], _spans(tokens, own, window, len(before)))
            for window, own in lay_windows(tokens, room, overlap)
        ]

    def _window(self, before: Int32, content: Int32, spans: Int32) -> Window:
        ids = np.concatenate((before, content, self._suffix))
        return Window(ids, self._plain.no_types(ids), spans)

    def _empty(self, before: Int32, chunks: int, limit: Limit, index: int) -> Window:
        """A text without tokens: its chunk is what an empty text is, the specials."""
        rows = len(before) + len(self._suffix)
        if not rows:
            message = f"{limit.place(index)} has no tokens at all"
            raise Untokenizable(message, field=limit.field, index=index)
        return self._window(before, np.zeros(0, np.int32), np.tile(np.array([0, rows], np.int32), (chunks, 1)))


def _spans(tokens: Sequence[range], own: range, window: range, shift: int) -> Int32:
    """The rows (chunks, 2) in the window of the chunks that are its own; shift: rows before its first token."""
    rows = [(tokens[i].start, tokens[i].stop) for i in own]
    return np.array(rows, np.int32) + np.int32(shift - window.start)
