"""Frames of a stream socket, both ways: a head, what codec.py packed, and its arrays. Used by server.py and link.py.

    kind (1 byte)  id (8)  bytes of packed (4)  bytes of arrays (8)  |  packed  |  padding to ALIGNMENT  |  arrays

What is read of a large frame goes from the kernel into the memory that its arrays then are views of; what is written
goes to the transport as it lies. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple, TypeAlias, cast

from vectord.cluster.remote.codec import ALIGNMENT, BadFrame, Buffer

HEAD = struct.Struct("<BQIQ")
MAX_FRAME_BYTES = 2**30
READ_BYTES = 256 * 1024  # at once, of frames that are smaller
HIGH_WATER_BYTES = 4 * 2**20  # written and not yet taken by the other side: from here on writers wait
JOINED_BYTES = 64 * 1024  # frames up to this are written as one piece


class Kind(IntEnum):
    """What a frame holds. The first four come from who connects: a front-end, or another engine with notes alone."""

    ASK = 1  # a request under a new id
    CANCEL = 2  # nobody wants the answer to this id any more
    CALL = 3  # a question of messages.py under a new id
    TELL = 4  # notes of messages.py; no answer
    RESULT = 5  # of an ASK
    REPLY = 6  # of a CALL
    ERROR = 7  # of either
    STATE = 8  # what the engine serves now; unasked


_log = logging.getLogger("vectord.cluster.remote")

OnFrame: TypeAlias = Callable[[Kind, int, memoryview, memoryview], None]


def frame(kind: Kind, number: int, content: Sequence[Buffer]) -> list[Buffer]:
    """The pieces of one frame, to be written in order. content: of codec.encode_*. Raises BadFrame above the limit."""
    packed, *arrays = content
    arrays_bytes = sum(len(buffer) for buffer in arrays)
    if len(packed) + arrays_bytes > MAX_FRAME_BYTES:
        raise BadFrame(f"{len(packed) + arrays_bytes} bytes in one frame; {MAX_FRAME_BYTES} at most")
    head = HEAD.pack(kind, number, len(packed), arrays_bytes)
    if arrays_bytes == 0:
        return [head + packed]
    pieces: list[Buffer] = [b"".join((head, packed, bytes(_padding(len(packed))))), *arrays]
    return [b"".join(pieces)] if arrays_bytes <= JOINED_BYTES else pieces


def nothing() -> None:
    pass


class Frames(asyncio.BufferedProtocol):
    """One connection. on_frame: called with kind, id, packed and arrays of each; BadFrame ends the connection.

    Packed is there during that call only, arrays for as long as anybody holds them. on_lost: called once, at the end;
    on_room: whenever the other side has taken most of what was too much.
    """

    def __init__(
        self,
        on_frame: OnFrame,
        on_lost: Callable[[], None],
        on_made: Callable[[], None] = nothing,
        on_room: Callable[[], None] = nothing,
    ) -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._on_made = on_made
        self._on_room = on_room
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._buffer = bytearray(READ_BYTES)
        self._large: bytearray | None = None  # the body of a frame that is larger, while it is read
        self._filled = 0  # bytes of whichever is read into

    # --- writing ----------------------------------------------------------------------------------------------

    def send(self, kind: Kind, number: int, content: Sequence[Buffer]) -> None:
        """Does nothing once the connection has ended. Raises BadFrame for what is too large."""
        pieces = frame(kind, number, content)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(pieces)

    async def room(self) -> None:
        """Return when the other side has taken most of what was sent, or the connection has ended."""
        await self._writable.wait()

    @property
    def is_full(self) -> bool:
        return not self._writable.is_set()

    def close(self) -> None:
        """What was sent is still written."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- reading ----------------------------------------------------------------------------------------------

    def pause(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer if self._large is None else self._large)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        try:
            if self._large is None:
                self._take_frames()
            elif self._filled == len(self._large):
                self._take_large(self._large)
        except BadFrame as problem:
            _log.warning("a connection of the engine's socket is closed: %s", problem)
            self.abort()

    def _take_frames(self) -> None:
        """Hand on every whole frame of the buffer; what begins another goes to where its rest will be read."""
        view, at = memoryview(self._buffer), 0
        while self._filled - at >= HEAD.size:
            head = read_head(view, at)
            begin, end = at + HEAD.size, at + HEAD.size + head.body_bytes
            if end > self._filled:
                if HEAD.size + head.body_bytes > READ_BYTES:
                    self._begin_large(head, view[begin : self._filled])
                    return
                break
            # Packed is read at once; arrays stay, and the buffer does not.
            body = memoryview(bytearray(view[begin:end])) if head.arrays_bytes else view[begin:end]
            self._hand_on(head, body)
            at = end
        rest = bytes(view[at : self._filled])
        self._buffer[: len(rest)] = rest
        self._filled = len(rest)

    def _begin_large(self, head: Head, begun: memoryview) -> None:
        self._head, self._large = head, bytearray(head.body_bytes)
        self._large[: len(begun)] = begun
        self._filled = len(begun)

    def _take_large(self, body: bytearray) -> None:
        head, self._large, self._filled = self._head, None, 0
        self._hand_on(head, memoryview(body))

    def _hand_on(self, head: Head, body: memoryview) -> None:
        arrays = body[head.body_bytes - head.arrays_bytes :]
        self._on_frame(head.kind, head.number, body[: head.packed_bytes], arrays)

    # --- asyncio tells ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(HIGH_WATER_BYTES)
        self._on_made()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()
        self._on_room()

    def connection_lost(self, problem: Exception | None) -> None:
        self._transport = None
        self._writable.set()
        self._on_lost()


class Head(NamedTuple):
    kind: Kind
    number: int
    packed_bytes: int
    arrays_bytes: int

    @property
    def body_bytes(self) -> int:
        return self.packed_bytes + self.arrays_bytes + (_padding(self.packed_bytes) if self.arrays_bytes else 0)


def read_head(view: memoryview, at: int) -> Head:
    """Raises BadFrame for what is no head, or one of too large a frame."""
    code, *rest = HEAD.unpack_from(view, at)
    try:
        head = Head(Kind(code), *rest)
    except ValueError:
        raise BadFrame(f"no kind of frame: {code}") from None
    if head.packed_bytes + head.arrays_bytes > MAX_FRAME_BYTES:
        raise BadFrame(f"a frame of more than {MAX_FRAME_BYTES} bytes")
    return head


def _padding(packed_bytes: int) -> int:
    return -packed_bytes % ALIGNMENT
