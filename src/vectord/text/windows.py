"""A document laid out in windows of tokens, for late chunking. Pure; called by chunking.py.

    tokens    |----------------------------------------------------|
    chunks    |  0  |  1   |  2  |  3   |  4  |  5   |  6 |    7   |
    windows   |0 1 2---------------|
                           |..3 4 5-------------|
                                           |..6 7------------------|

A window begins with up to `overlap` tokens that are there to be attended to (..), then come its own chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def lay_windows(chunks: Sequence[range], tokens: int, room: int, overlap: int) -> Iterator[tuple[range, range]]:
    """Windows of at most `room` of a document's `tokens`, and the places of the chunks that are each one's own.

    chunks: their tokens, rising. overlap + the longest chunk <= room.
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
