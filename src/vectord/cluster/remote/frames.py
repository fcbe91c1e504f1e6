"""Frames on a stream socket, in both directions. Used by server.py and link.py, on their event loops.

    kind (1 byte)  id (8)  size of packed (4)  size of arrays (8)  |  packed  |  padding to ALIGNMENT  |  arrays

A large frame is read from the kernel directly into the memory of its arrays, and written without copying.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple, TypeAlias, cast

from vectord.cluster.remote.codec import ALIGNMENT, Buffer

HEAD = struct.Struct("<BQIQ")
MAX_FRAME_BYTES = 2**30
READ_BYTES = 256 * 1024  # read at once; larger frames have a buffer of their own
HIGH_WATER_BYTES = 4 * 2**20  # of unsent data, above which writers wait
JOINED_BYTES = 64 * 1024  # smaller frames are written in one piece


class FrameKind(IntEnum):
    CALL = 1  # of a front-end: a method and its arguments, with a new id
    CANCEL = 2  # of a front-end: the call with this id
    REPLY = 3  # to a call
    ERROR = 4  # of a call
    STATE = 5  # the EngineState, every HEARTBEAT_S


class FrameTooLarge(Exception):
    """The content has more than MAX_FRAME_BYTES."""


OnFrame: TypeAlias = Callable[[FrameKind, int, memoryview, memoryview], None]


def frame(kind: FrameKind, number: int, content: Sequence[Buffer]) -> list[Buffer]:
    """The pieces of one frame. content: from codec.encode_*. Raises FrameTooLarge."""
    packed, *arrays = content
    arrays_bytes = sum(len(buffer) for buffer in arrays)
    if len(packed) + arrays_bytes > MAX_FRAME_BYTES:
        raise FrameTooLarge
    head = HEAD.pack(kind, number, len(packed), arrays_bytes)
    if arrays_bytes == 0:
        return [head + packed]
    pieces: list[Buffer] = [b"".join((head, packed, bytes(_padding(len(packed))))), *arrays]
    return [b"".join(pieces)] if arrays_bytes <= JOINED_BYTES else pieces


class FrameConnection(asyncio.BufferedProtocol):
    """One connection. on_frame: called with kind, id, packed and arrays; if it raises, the connection ends.

    packed is valid only during that call; arrays stay valid. on_lost: called once, at the end.
    """

    transport: asyncio.Transport

    def __init__(self, on_frame: OnFrame, on_lost: Callable[[], None]) -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._writable = asyncio.Event()
        self._writable.set()
        self._buffer = bytearray(READ_BYTES)
        self._large: bytearray | None = None  # the body of a larger frame while it is read
        self._head: FrameHeader  # of the large frame
        self._filled = 0  # bytes in the buffer that is read into

    def send(self, kind: FrameKind, number: int, content: Sequence[Buffer]) -> None:
        """Does nothing after the end of the connection. Raises FrameTooLarge."""
        pieces = frame(kind, number, content)
        if not self.transport.is_closing():
            self.transport.writelines(pieces)

    async def drained(self) -> None:
        """Returns when most sent data is read by the other side, or the connection has ended."""
        await self._writable.wait()

    @property
    def is_paused(self) -> bool:
        """Whether the other side does not read fast enough."""
        return not self._writable.is_set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer if self._large is None else self._large)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Deliver every complete frame of the buffer. The start of a large frame moves to a buffer of its own."""
        self._filled += nbytes
        if self._large is not None:
            if self._filled == len(self._large):
                body, self._large, self._filled = memoryview(self._large), None, 0
                self._deliver(self._head, body)
            return
        view, at = memoryview(self._buffer), 0
        while self._filled - at >= HEAD.size:
            head = read_head(view, at)
            begin, end = at + HEAD.size, at + HEAD.size + head.body_bytes
            if end > self._filled:
                if HEAD.size + head.body_bytes > READ_BYTES:
                    self._head, self._large = head, bytearray(head.body_bytes)
                    self._filled -= begin
                    self._large[: self._filled] = view[begin : begin + self._filled]
                    return
                break
            # The arrays outlive this buffer, so they need a copy; packed is decoded at once.
            body = memoryview(bytearray(view[begin:end])) if head.arrays_bytes else view[begin:end]
            self._deliver(head, body)
            at = end
        rest = bytes(view[at : self._filled])
        self._buffer[: len(rest)] = rest
        self._filled = len(rest)

    def _deliver(self, head: FrameHeader, body: memoryview) -> None:
        arrays = body[head.body_bytes - head.arrays_bytes :]
        self._on_frame(head.kind, head.number, body[: head.packed_bytes], arrays)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it
        self.transport.set_write_buffer_limits(HIGH_WATER_BYTES)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, problem: Exception | None) -> None:
        self._writable.set()
        self._on_lost()


class FrameHeader(NamedTuple):
    kind: FrameKind
    number: int
    packed_bytes: int
    arrays_bytes: int

    @property
    def body_bytes(self) -> int:
        return self.packed_bytes + self.arrays_bytes + (_padding(self.packed_bytes) if self.arrays_bytes else 0)


def read_head(view: memoryview, at: int) -> FrameHeader:
    kind, *rest = HEAD.unpack_from(view, at)
    return FrameHeader(FrameKind(kind), *rest)


def read_exactly(handle: int, size_bytes: int) -> bytes:
    """From a blocking pipe or socket. Raises EOFError at its end."""
    content = b""
    while len(content) < size_bytes:
        more = os.read(handle, size_bytes - len(content))
        if not more:
            raise EOFError
        content += more
    return content


def _padding(packed_bytes: int) -> int:
    return -packed_bytes % ALIGNMENT
