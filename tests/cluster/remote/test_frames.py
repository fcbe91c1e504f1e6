"""frames.py: frames arrive complete however the bytes are split."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vectord.cluster.remote.frames import READ_BYTES, FrameConnection, FrameKind, frame


class Wire(asyncio.Transport):
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


def fed(content: bytes, cuts: list[int]) -> list[tuple[Any, ...]]:
    """The frames of `content`, received in pieces of these sizes, repeatedly."""
    found: list[tuple[Any, ...]] = []
    frames = FrameConnection(
        lambda kind, number, packed, arrays: found.append((kind, number, bytes(packed), arrays)), lambda: None
    )
    frames.connection_made(Wire())
    at = place = 0
    while at < len(content):
        buffer = frames.get_buffer(-1)
        size = min(len(buffer), cuts[place % len(cuts)], len(content) - at)
        buffer[:size] = content[at : at + size]
        frames.buffer_updated(size)
        at, place = at + size, place + 1
    return [(*rest, bytes(arrays)) for *rest, arrays in found]


def written(*frames: tuple[FrameKind, int, bytes, bytes]) -> bytes:
    return b"".join(b"".join(frame(kind, number, [packed, arrays])) for kind, number, packed, arrays in frames)


FRAMES = st.tuples(
    st.sampled_from(FrameKind), st.integers(0, 2**64 - 1), st.binary(max_size=50), st.binary(max_size=100)
)


@given(sent=st.lists(FRAMES, max_size=8), cuts=st.lists(st.integers(1, 60), min_size=1, max_size=5))
def test_frames_arrive_complete_however_they_are_split(
    sent: list[tuple[FrameKind, int, bytes, bytes]], cuts: list[int]
) -> None:
    """In order; later frames do not overwrite the arrays of earlier ones."""
    assert fed(written(*sent), cuts) == sent


@pytest.mark.parametrize("size", [READ_BYTES - 100, READ_BYTES, 3 * READ_BYTES + 7])
@pytest.mark.parametrize("cut", [1_000, READ_BYTES - 1, 10**9])
def test_a_large_frame_arrives_complete_between_small_ones(size: int, cut: int) -> None:
    """Larger than the read buffer, followed by the next frame."""
    large = (FrameKind.REPLY, 2, b"packed", bytes(range(256)) * (size // 256))
    sent = [(FrameKind.CALL, 1, b"a", b""), large, (FrameKind.REPLY, 3, b"b", b"c")] * 2
    assert fed(written(*sent), [cut]) == sent
