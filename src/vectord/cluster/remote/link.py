"""A connection to an engine's process: kept up, with questions by id and what the engine announces.

A front-end's client.py, limits.py and metrics.py share one; another engine's process has one for reporter.py. On the
event loop. While the engine's process is being replaced there is no link: what was asked fails at once with
Unavailable, and so does what is asked meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias, cast

from vectord.cluster.remote.codec import BadFrame, Buffer, decode_error, decode_value
from vectord.cluster.remote.frames import HEAD, MAX_FRAME_BYTES, Frames, Kind, read_head
from vectord.cluster.remote.messages import State
from vectord.errors import PayloadTooLarge, Unavailable

FIRST_RETRY_S = 0.02  # after a connection was refused; twice as long each time
LONGEST_RETRY_S = 1.0
NO_ENGINE = "The engine's process is being replaced."

Decode: TypeAlias = Callable[[memoryview, memoryview], Any]

_log = logging.getLogger("vectord.cluster.remote")


class Link:
    def __init__(self, path: Path, state: State | None = None) -> None:
        """path: the engine's socket. state: what `first_state` gave, if it is known already. Not connected before
        `open`."""
        self.state = state
        self._path = path
        self._frames: Frames | None = None  # None: no engine is there
        self._waiting: dict[int, tuple[asyncio.Future[Any], Decode]] = {}
        self._last_number = 0
        self._keeping: asyncio.Task[None] | None = None
        self._found_or_given_up = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []

    @property
    def is_up(self) -> bool:
        return self._frames is not None

    def on_up(self, tell: Callable[[], None]) -> None:
        """Call `tell` whenever an engine has been found."""
        self._listeners.append(tell)

    async def open(self) -> None:
        """Connected when it returns, or given up."""
        self._keeping = asyncio.get_running_loop().create_task(self._stay_connected())
        await self._found_or_given_up.wait()

    def give_up(self) -> None:
        """Let `open` return, if it still waits: an engine may never come."""
        self._found_or_given_up.set()

    async def close(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeping
        if self._frames is not None:
            self._frames.close()
        self._lose()

    # --- questions --------------------------------------------------------------------------------------------

    async def ask(self, kind: Kind, content: list[Buffer], decode: Decode) -> Any:
        """The answer as `decode` reads it. Cancelling this ends the work there.

        Raises what the engine raised; Unavailable where no engine is; PayloadTooLarge for what fits no frame.
        """
        await self._room()
        self._last_number = number = self._last_number + 1
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._send(kind, number, content)
        self._waiting[number] = answer, decode
        try:
            return await answer
        except asyncio.CancelledError:
            if self._waiting.pop(number, None) is not None and self._frames is not None:
                self._frames.send(Kind.CANCEL, number, [b""])
            raise

    def tell(self, content: list[Buffer]) -> None:
        """Send notes, if an engine is there."""
        if self._frames is not None:
            self._frames.send(Kind.TELL, 0, content)

    async def _room(self) -> None:
        if self._frames is not None:
            await self._frames.room()

    def _send(self, kind: Kind, number: int, content: list[Buffer]) -> None:
        if self._frames is None:
            raise Unavailable(NO_ENGINE)
        try:
            self._frames.send(kind, number, content)
        except BadFrame:
            raise PayloadTooLarge(f"The request has more than {MAX_FRAME_BYTES} bytes.") from None

    # --- the connection ---------------------------------------------------------------------------------------

    async def _stay_connected(self) -> None:
        retry_s = FIRST_RETRY_S
        while True:
            connection = _Connection(self)
            try:
                await asyncio.get_running_loop().create_unix_connection(connection.made, str(self._path))
            except OSError:
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, LONGEST_RETRY_S)
                continue
            await connection.lost.wait()
            if self._frames is connection.frames:
                _log.warning("an engine's process is gone: waiting for another")
                self._lose()
            else:
                await asyncio.sleep(retry_s)  # it let go before it said what it serves
            retry_s = FIRST_RETRY_S

    def found(self, frames: Frames, state: State) -> None:
        self.state = state
        if self._frames is frames:
            return
        self._frames = frames
        self._found_or_given_up.set()
        for tell in self._listeners:
            tell()

    def answered(self, kind: Kind, number: int, packed: memoryview, arrays: memoryview) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is None or waiting[0].done():  # whoever asked has left
            return
        answer, decode = waiting
        if kind is Kind.ERROR:
            answer.set_exception(decode_error(packed, arrays))
        else:
            answer.set_result(decode(packed, arrays))

    def _lose(self) -> None:
        self._frames = None
        waiting, self._waiting = self._waiting, {}
        for answer, _ in waiting.values():
            if not answer.done():
                answer.set_exception(Unavailable(NO_ENGINE))


class _Connection:
    def __init__(self, link: Link) -> None:
        self.lost = asyncio.Event()
        self.frames = Frames(self._on_frame, self.lost.set)
        self._link = link

    def made(self) -> Frames:
        return self.frames

    def _on_frame(self, kind: Kind, number: int, packed: memoryview, arrays: memoryview) -> None:
        match kind:
            case Kind.STATE:
                self._link.found(self.frames, decode_value(State, packed, arrays))
            case Kind.RESULT | Kind.REPLY | Kind.ERROR:
                self._link.answered(kind, number, packed, arrays)
            case _:
                raise BadFrame(f"{kind.name} comes from a front-end")


def first_state(path: Path) -> State:
    """What the engine serves, once it is there to say so. Blocks until then.

    Raises EOFError if nobody holds its socket any more.
    """
    while True:
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(str(path))
            except (ConnectionRefusedError, FileNotFoundError):
                raise EOFError from None
            with suppress(EOFError, ConnectionResetError):  # it ended before it could say so; another will come
                return _read_state(connection)


def _read_state(connection: socket.socket) -> State:
    head = read_head(memoryview(_exactly(connection, HEAD.size)), 0)
    return cast(State, decode_value(State, _exactly(connection, head.body_bytes), b""))


def _exactly(connection: socket.socket, size_bytes: int) -> bytearray:
    content = bytearray(size_bytes)
    view, filled = memoryview(content), 0
    while filled < size_bytes:
        received = connection.recv_into(view[filled:])
        if received == 0:
            raise EOFError
        filled += received
    return content
