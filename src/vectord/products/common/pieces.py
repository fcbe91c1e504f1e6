"""A document from the pieces that a client has cut it into, for late chunking: Jina's and Voyage's shape of it."""

from __future__ import annotations

from collections.abc import Sequence

from vectord.schema import Span


def joined(pieces: Sequence[str]) -> tuple[str, list[Span]]:
    """The text that the pieces, none of them empty, were cut from, as far as they tell, and where they are in it.

    A blank stands between two that have none of their own there, so that no token is half of each.
    """
    parts: list[str] = []
    spans: list[Span] = []
    length = 0
    for piece in pieces:
        if parts and not parts[-1][-1].isspace() and not piece[0].isspace():
            parts.append(" ")
            length += 1
        parts.append(piece)
        spans.append(Span(length, length + len(piece)))
        length += len(piece)
    return "".join(parts), spans
