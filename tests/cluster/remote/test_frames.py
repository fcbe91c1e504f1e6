"""frames.py: frames arrive complete however the bytes are split; an invalid frame ends the connection."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vectord.cluster.remote.frames import HEAD, MAX_FRAME_BYTES, READ_BYTES, FrameConnection, FrameKind, frame


class Wire(asyncio.Transport):
    """A transport that records whether it was aborted."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def abort(self) -> None:
        self.aborted = True


def fed(content: bytes, cuts: list[int]) -> tuple[list[tuple[Any, ...]], Wire]:
    """The frames of `content`, received in pieces of these sizes, repeatedly."""
    found: list[tuple[Any, ...]] = []
    wire = Wire()
    frames = FrameConnection(
        lambda kind, number, packed, arrays: found.append((kind, number, bytes(packed), arrays)), lambda: None
    )
    frames.connection_made(wire)
    at = place = 0
    while at < len(content):
        buffer = frames.get_buffer(-1)
        size = min(len(buffer), cuts[place % len(cuts)], len(content) - at)
        buffer[:size] = content[at : at + size]
        frames.buffer_updated(size)
        at, place = at + size, place + 1
    return [(*rest, bytes(arrays)) for *rest, arrays in found], wire


def written(*frames: tuple[FrameKind, int, bytes, bytes]) -> bytes:
    return b"".join(b"".join(frame(kind, number, [packed, arrays])) for kind, number, packed, arrays in frames)


FRAMES = st.tuples(
    st.sampled_from(FrameKind), st.integers(0, 2**64 - 1), st.binary(max_size=50), st.binary(max_size=100)
)


@settings(max_examples=200, deadline=None)
@given(sent=st.lists(FRAMES, max_size=8), cuts=st.lists(st.integers(1, 60), min_size=1, max_size=5))
def test_frames_arrive_complete_however_they_are_split(
    sent: list[tuple[FrameKind, int, bytes, bytes]], cuts: list[int]
) -> None:
    """In order; later frames do not overwrite the arrays of earlier ones."""
    assert fed(written(*sent), cuts)[0] == sent


@pytest.mark.parametrize("size", [READ_BYTES - 100, READ_BYTES, 3 * READ_BYTES + 7])
@pytest.mark.parametrize("cut", [1_000, READ_BYTES - 1, 10**9])
def test_a_large_frame_arrives_complete_between_small_ones(size: int, cut: int) -> None:
    """Larger than the read buffer, followed by the next frame."""
    large = (FrameKind.REPLY, 2, b"packed", bytes(range(256)) * (size // 256))
    sent = [(FrameKind.CALL, 1, b"a", b""), large, (FrameKind.REPLY, 3, b"b", b"c")] * 2
    assert fed(written(*sent), [cut])[0] == sent


@pytest.mark.parametrize(
    "head",
    [HEAD.pack(0, 1, 0, 0), HEAD.pack(99, 1, 0, 0), HEAD.pack(1, 1, 2**32 - 1, 0), HEAD.pack(1, 1, 1, MAX_FRAME_BYTES)],
    ids=["kind 0", "unknown kind", "packed too large", "arrays too large"],
)
def test_an_invalid_frame_ends_the_connection(head: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Before memory is allocated for it."""
    with caplog.at_level(logging.WARNING):
        found, wire = fed(head, [100])
    assert (found, wire.aborted) == ([], True)
