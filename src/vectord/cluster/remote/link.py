"""A front-end's connection to the engine's process: it reconnects, matches replies by id, and keeps the engine's state.

Belongs to the event loop. While the engine's process is replaced, pending and new requests fail with Unavailable. A
stopped one is noticed by its silence: new requests fail after SILENT_S; after HUNG_S the connection is closed, so that
pending ones fail too, and the engine cancels them when it continues.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from vectord.cluster.remote.codec import (
    HEARTBEAT_S,
    EngineState,
    Report,
    decode_value,
    encode_call,
)
from vectord.cluster.remote.frames import (
    HEAD,
    MAX_FRAME_BYTES,
    FrameConnection,
    FrameKind,
    FrameTooLarge,
    read_exactly,
    read_head,
)
from vectord.errors import PayloadTooLarge, Unavailable, VectordError

FIRST_RETRY_S = 0.02  # after a refused connection; doubles each time
LONGEST_RETRY_S = 1.0
SILENT_S = 1.5  # without a frame; with HEARTBEAT_S, a stopped engine is noticed within 2 s
HUNG_S = 10.0  # a forward pass of any length runs in a thread, while the engine's event loop sends heartbeats
NO_ENGINE = "The engine's process is being replaced."
NO_ANSWER = "The engine's process does not answer."
REPORT_DELAY_S = 0.05  # reports are sent in batches
MAX_REPORTS = 16_384  # kept without an engine; beyond it the oldest are dropped

_log = logging.getLogger("vectord.cluster.remote")


class Link:
    def __init__(self, path: Path, state: EngineState | None = None) -> None:
        """path: of the engine's socket. state: from `first_state`, if known. Not connected before `open`."""
        self.state = state
        self._path = path
        self._opened: FrameConnection | None = None  # the last one
        self._connection: FrameConnection | None = None  # the same once the engine's state has arrived; None: no engine
        self._pending: dict[int, tuple[asyncio.Future[Any], Any]] = {}  # with the type of the reply
        self._last_number = 0
        self._silent_s = 0.0  # since the engine's last frame
        self._tasks: list[asyncio.Task[None]] = []
        self._connected_or_given_up = asyncio.Event()
        self._reports: deque[Report] = deque(maxlen=MAX_REPORTS)
        self._flush_timer: asyncio.TimerHandle | None = None

    @property
    def is_up(self) -> bool:
        return self._connection is not None and not self._is_silent

    @property
    def _is_silent(self) -> bool:
        return self._silent_s >= SILENT_S

    async def open(self) -> None:
        """Returns when it is connected, or `give_up` was called."""
        self._tasks = [asyncio.create_task(self._stay_connected()), asyncio.create_task(self._watch())]
        await self._connected_or_given_up.wait()

    def give_up(self) -> None:
        """Make `open` return without an engine, which may never come."""
        self._connected_or_given_up.set()

    async def close(self) -> None:
        self.flush_reports()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._connection is not None:
            self._connection.transport.close()
        self._disconnected()

    async def call(self, reply: Any, method: str, *arguments: Any) -> Any:
        """Call this method of the engine's process. reply: the type of what it returns. Cancelling this cancels it."""
        content = encode_call(method, *arguments)
        if self._connection is not None and not self._is_silent:
            await self._connection.drained()
        if self._connection is None or self._is_silent:
            raise self._unavailable()
        self._last_number = number = self._last_number + 1
        try:
            self._connection.send(FrameKind.CALL, number, content)
        except FrameTooLarge:
            raise PayloadTooLarge("The request has more than {limit} bytes.", limit=MAX_FRAME_BYTES) from None
        replied: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending[number] = replied, reply
        try:
            return await replied
        except asyncio.CancelledError:
            if self._pending.pop(number, None) is not None and self._connection is not None:
                self._connection.send(FrameKind.CANCEL, number, [b""])
            raise

    def report(self, report: Report) -> None:
        """Send `report` soon; without an engine, to the next one."""
        self._reports.append(report)
        if self._flush_timer is None:
            self._flush_timer = asyncio.get_running_loop().call_later(REPORT_DELAY_S, self.flush_reports)

    def flush_reports(self) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        if self._reports and self._connection is not None:
            self._last_number += 1
            self._connection.send(FrameKind.CALL, self._last_number, encode_call("observe", list(self._reports)))
            self._reports.clear()

    async def _stay_connected(self) -> None:
        retry_s = FIRST_RETRY_S
        while True:
            lost = asyncio.Event()
            self._opened = connection = FrameConnection(self._received, lost.set)
            with suppress(OSError):
                await asyncio.get_running_loop().create_unix_connection(lambda: connection, str(self._path))  # noqa: B023
                await lost.wait()
            if self._connection is None:  # refused, or closed before the engine announced its state
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, LONGEST_RETRY_S)
            else:
                _log.warning("the engine's process is gone: waiting for the next one")
                self._disconnected()
                retry_s = FIRST_RETRY_S

    def _received(self, kind: FrameKind, number: int, packed: memoryview, arrays: memoryview) -> None:
        if self._is_silent:
            _log.warning("the engine's process answers again")
        self._silent_s = 0.0
        match kind:
            case FrameKind.STATE:
                self.state = decode_value(EngineState, packed, arrays)
                if self._connection is None:
                    self._connection = self._opened
                    self._connected_or_given_up.set()
                    self.flush_reports()
            case FrameKind.REPLY | FrameKind.ERROR:
                replied, reply = self._pending.get(number, (None, None))
                if replied is None or replied.done():  # a call that was cancelled, or a report
                    return
                if kind is FrameKind.ERROR:
                    replied.set_exception(decode_value(VectordError, packed, arrays))
                else:
                    replied.set_result(decode_value(reply, packed, arrays))
                del self._pending[number]

    async def _watch(self) -> None:
        """Counts its own iterations, so that a pause of this process does not count as one of the engine."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            if self._connection is None:
                continue
            was_silent = self._is_silent
            self._silent_s += HEARTBEAT_S
            if self._is_silent and not was_silent:
                _log.error("the engine's process does not answer")
            if self._silent_s >= HUNG_S:
                self._connection.transport.abort()

    def _unavailable(self) -> Unavailable:
        return Unavailable(NO_ANSWER if self._is_silent else NO_ENGINE)

    def _disconnected(self) -> None:
        self._connection = None
        pending, self._pending = self._pending, {}
        for replied, _ in pending.values():
            if not replied.done():
                replied.set_exception(self._unavailable())


def first_state(path: Path) -> EngineState:
    """The state of the engine at `path`. Blocks until there is one. Raises EOFError if no process holds the socket."""
    while True:
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(str(path))
            except (ConnectionRefusedError, FileNotFoundError):
                raise EOFError from None
            with suppress(EOFError, ConnectionResetError):  # the engine ended early and will be replaced
                head = read_head(memoryview(read_exactly(connection.fileno(), HEAD.size)), 0)
                packed = read_exactly(connection.fileno(), head.body_bytes)
                return cast(EngineState, decode_value(EngineState, packed, b""))
