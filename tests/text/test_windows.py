"""Every chunk is in exactly one window, no window is too long, and each begins with context."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from vectord.text.windows import lay_windows


@settings(max_examples=300, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 20), max_size=40),
    shared=st.integers(0, 10),
    gap=st.integers(0, 15),
    room=st.integers(20, 90),
    overlap=st.integers(0, 30),
)
def test_windows_hold_every_chunk_once(lengths: list[int], shared: int, gap: int, room: int, overlap: int) -> None:
    """In order and whole, after as much overlap as there is text, with chunks that share tokens, adjoin or have
    gaps."""
    overlap = min(overlap, room - 20)
    chunks: list[range] = []
    for length in lengths:
        stop = chunks[-1].stop + gap if chunks else gap
        first = max(stop - min(shared, length - 1), chunks[-1].start + 1 if chunks else 0)
        chunks.append(range(first, max(first + length, stop + 1)))
    tokens = chunks[-1].stop + gap if chunks else gap
    windows = list(lay_windows(chunks, tokens, room, overlap))
    assert [i for _, own in windows for i in own] == list(range(len(chunks)))
    for window, own in windows:
        assert 0 < len(window) <= room
        assert window.start == (0 if tokens <= room else max(0, chunks[own[0]].start - overlap))
        assert window.stop == min(window.start + room, tokens)
        assert all(window.start <= chunks[i].start < chunks[i].stop <= window.stop for i in own)
