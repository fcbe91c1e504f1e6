"""Serves the engine of this process to front-ends, over a Unix socket. Made by processes/engine.py, on its event loop.

    CALL ─▶ a task ─▶ REPLY or ERROR with the same id     CANCEL cancels the task
    STATE is sent to all front-ends every HEARTBEAT_S

The folder of the socket belongs to its user alone: every process that can connect may send anything. The end of a
connection cancels its requests. A connection that does not read its results is not read either.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from vectord.budget import Budget
from vectord.cluster.remote.codec import HEARTBEAT_S, Buffer, EngineState, Report, decode_call, encode_value
from vectord.cluster.remote.frames import MAX_FRAME_BYTES, FrameConnection, FrameKind, FrameTooLarge
from vectord.engine.client import LocalEngine
from vectord.errors import UNFORESEEN, InferenceFailed, PayloadTooLarge, VectordError
from vectord.observability.exchange import ConnectionsCounted
from vectord.observability.logs import log_failure
from vectord.observability.metrics import Metrics
from vectord.schema import ANYONE, Caller, ModelList
from vectord.server.admission.buckets import TokenBuckets

BACKLOG = 128  # connections that wait in the kernel while the engine's process starts
MAX_REQUESTS_BYTES = 256 * 2**20  # of one connection's running requests; beyond it the connection is not read


class EngineServer:
    def __init__(
        self,
        engine: LocalEngine,
        buckets: TokenBuckets,
        metrics: Metrics | None = None,
    ) -> None:
        self.engine = engine
        self.buckets = buckets
        self.metrics = metrics
        self._connections: set[_FrontEndConnection] = set()
        self._no_connection = asyncio.Event()
        self._no_connection.set()
        self._server: asyncio.AbstractServer | None = None
        self._heartbeats: asyncio.Task[None] | None = None

    async def start(self, listener: socket.socket) -> None:
        self._server = await asyncio.get_running_loop().create_unix_server(
            lambda: _FrontEndConnection(self), sock=listener, backlog=BACKLOG
        )
        self._heartbeats = asyncio.get_running_loop().create_task(self._send_heartbeats())

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            self.announce()

    def announce(self) -> None:
        state = self._state()
        for connection in self._connections:
            if not connection.is_paused:
                connection.send(FrameKind.STATE, 0, state)

    async def wait_until_unused(self) -> None:
        await self._no_connection.wait()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            await connection.finish()
        if self._heartbeats is not None:
            self._heartbeats.cancel()

    def abort(self) -> None:
        for connection in list(self._connections):
            connection.transport.abort()

    def connected(self, connection: _FrontEndConnection) -> None:
        self._connections.add(connection)
        self._no_connection.clear()
        connection.send(FrameKind.STATE, 0, self._state())

    def disconnected(self, connection: _FrontEndConnection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._no_connection.set()

    def _state(self) -> list[Buffer]:
        models = self.engine.models()
        return encode_value(EngineState(readiness=self.engine.readiness(), models=models, names=self.engine.names()))


class _FrontEndConnection(FrameConnection):
    def __init__(self, server: EngineServer) -> None:
        super().__init__(self._received, self._lost)
        self._server = server
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._calls = Budget(MAX_REQUESTS_BYTES)  # of those tasks
        metrics = server.metrics
        self._methods: dict[str, Callable[..., Awaitable[Any]]] = {
            "answer": server.engine.answer,
            "check_busy": server.engine.check_busy,
            "draw": server.buckets.draw,
            "spend": server.buckets.spend,
            "observe": self._observe,
        }
        if metrics is not None:  # otherwise no front-end asks for them
            self._methods |= {"exposition": metrics.exposition, "figures": metrics.figures}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.connected(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._read_or_pause()

    async def finish(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks.values())
        self.transport.close()

    def _received(self, kind: FrameKind, number: int, packed: memoryview, arrays: memoryview) -> None:
        match kind:
            case FrameKind.CALL:
                method, arguments = decode_call(packed, arrays)
                n_bytes = len(packed) + len(arrays)
                self._calls.add(n_bytes)
                work = self._answer(number, self._methods[method], arguments)
                self._tasks[number] = task = asyncio.get_running_loop().create_task(work)
                task.add_done_callback(lambda _: self._ended(number, n_bytes))
                self._read_or_pause()
            case FrameKind.CANCEL:
                if number in self._tasks:
                    self._tasks[number].cancel()

    def _lost(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        self._server.disconnected(self)
        self._record(ConnectionsCounted(0, 0, {}))

    def _record(self, report: Report) -> None:
        metrics = self._server.metrics
        if metrics is None:
            return
        if isinstance(report, ConnectionsCounted):
            report = msgspec.structs.replace(report, process=id(self))
        metrics.observe(report)

    async def _observe(self, reports: Sequence[Report]) -> None:
        for report in reports:
            self._record(report)

    def _ended(self, number: int, n_bytes: int) -> None:
        del self._tasks[number]
        self._calls.release(n_bytes)
        self._read_or_pause()

    def _read_or_pause(self) -> None:
        if self.is_paused or self._calls.held > self._calls.limit:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    async def _answer(self, number: int, call: Callable[..., Awaitable[Any]], arguments: tuple[Any, ...]) -> None:
        """Send what the call returns, or its error. Cancelled when the front-end does not want it any more."""
        caller = next((each for each in arguments if isinstance(each, Caller)), ANYONE)
        try:
            found = await call(*arguments)
            if isinstance(found, ModelList):
                self._server.announce()  # before the result, so that the front-end has the changed state
            content = encode_value(found)
            await self.drained()
            self.send(FrameKind.REPLY, number, content)
        except VectordError as error:
            if isinstance(error, InferenceFailed):  # the front-end does not have its cause
                log_failure(error, request_id=caller.request_id, method="", route=caller.route)
            self._fail(number, error, caller)
        except FrameTooLarge:
            too_large = PayloadTooLarge("The answer has more than {limit} bytes; request less.", limit=MAX_FRAME_BYTES)
            self._fail(number, too_large, caller)
        except Exception as cause:
            log_failure(cause, request_id=caller.request_id, method="", route=caller.route)
            self._fail(number, VectordError(UNFORESEEN), caller)

    def _fail(self, number: int, error: VectordError, caller: Caller) -> None:
        """Sends the error, or another one if its values cannot be sent: without a frame the front-end would wait."""
        try:
            content = encode_value(error)
        except Exception as cause:
            log_failure(cause, request_id=caller.request_id, method="", route=caller.route)
            content = encode_value(VectordError(UNFORESEEN))
        self.send(FrameKind.ERROR, number, content)
