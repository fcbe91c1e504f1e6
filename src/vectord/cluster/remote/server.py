"""Serves the engine of this process to others of this machine, on a Unix socket: requests by id, answers as they come.

    ASK, CALL ──▶ a task each ──▶ RESULT, REPLY or ERROR under the same id          CANCEL ends the task
    TELL      ──▶ what counts here                                   STATE goes to everybody when it has changed

Made by processes/engine.py, on the engine's event loop. Whoever can reach the socket may ask anything: the folder it
lies in is its user's alone. A connection that ends takes its requests with it; one that does not read is read no more.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import orjson

from vectord.cluster.remote.codec import (
    BadFrame,
    Buffer,
    decode_request,
    decode_value,
    encode_error,
    encode_result,
    encode_value,
)
from vectord.cluster.remote.frames import MAX_FRAME_BYTES, Frames, Kind
from vectord.cluster.remote.messages import (
    Call,
    DrawAll,
    Expose,
    Live,
    Note,
    Page,
    Reply,
    Routes,
    Spend,
    State,
)
from vectord.engine.client import EngineClient
from vectord.errors import UNFORESEEN, InferenceFailed, PayloadTooLarge, VectordError
from vectord.observability.exchange import Exchange
from vectord.observability.logs import log_failure
from vectord.observability.metrics import Metrics
from vectord.schema import Caller, ModelList, Request, Result
from vectord.server.admission.buckets import TokenBuckets

BACKLOG = 128  # connections the kernel holds while this process is not there yet
MAX_UNDER_WAY_BYTES = 256 * 2**20  # of one connection's requests; beyond it no more are read

_log = logging.getLogger("vectord.cluster.remote")


class EngineServer:
    def __init__(
        self,
        engine: EngineClient,
        names: Callable[[], Mapping[str, str]],
        buckets: TokenBuckets,
        meter: Metrics | None = None,
    ) -> None:
        """names: every name that clients may use, and the served one it stands for. meter: None counts nothing."""
        self.engine = engine
        self.buckets = buckets
        self.meter = meter
        self._names = names
        self._connections: set[_Connection] = set()
        self._gone = asyncio.Event()  # nobody is connected
        self._gone.set()
        self._server: asyncio.AbstractServer | None = None
        self._told: list[Buffer] = []

    async def start(self, listener: socket.socket) -> None:
        """Whoever waits in the backlog of `listener` is served from now on."""
        self._server = await asyncio.get_running_loop().create_unix_server(
            lambda: _Connection(self).frames, sock=listener, backlog=BACKLOG
        )

    def announce(self) -> None:
        """Tell every front-end what is served now, if that is not what they know."""
        state = self._state()
        if state == self._told:
            return
        self._told = state
        for connection in self._connections:
            connection.frames.send(Kind.STATE, 0, state)

    async def gone(self) -> None:
        """Return when nobody is connected."""
        await self._gone.wait()

    async def close(self) -> None:
        """Write what has been answered, and let go of everybody. The engine has drained."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            await connection.finish()

    def abort(self) -> None:
        """Let go of everybody now, whatever they still wait for."""
        for connection in list(self._connections):
            connection.frames.abort()

    def joined(self, connection: _Connection) -> None:
        self._connections.add(connection)
        self._gone.clear()
        self._told = self._state()
        connection.frames.send(Kind.STATE, 0, self._told)

    def left(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._gone.set()

    def _state(self) -> list[Buffer]:
        models = self.engine.models()
        return encode_value(State(readiness=self.engine.readiness(), models=models, names=self._names()))


class _Connection:
    """One front-end's."""

    def __init__(self, server: EngineServer) -> None:
        self.frames = Frames(
            self._on_frame, self._on_lost, on_made=lambda: server.joined(self), on_room=self._read_or_wait
        )
        self._server = server
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._bytes: dict[int, int] = {}  # of the requests of those tasks
        self._paused = False

    async def finish(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks.values())
        self.frames.close()

    # --- what comes -------------------------------------------------------------------------------------------

    def _on_frame(self, kind: Kind, number: int, packed: memoryview, arrays: memoryview) -> None:
        match kind:
            case Kind.ASK:
                request, caller = decode_request(packed, arrays)
                self._begin(number, len(packed) + len(arrays), self._ask(number, request, caller))
            case Kind.CALL:
                call: Call = decode_value(Call, packed, arrays)
                self._begin(number, len(packed), self._call(number, call))
            case Kind.CANCEL:
                if number in self._tasks:
                    self._tasks[number].cancel()
            case Kind.TELL:
                for note in decode_value(list[Note], packed, arrays):
                    self._note(note)
            case _:
                raise BadFrame(f"{kind.name} comes from an engine")

    def _on_lost(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        self._server.left(self)

    def _note(self, note: Note) -> None:
        meter = self._server.meter
        if meter is None:
            return
        match note:
            case Exchange():
                meter.observe(note)
            case Routes():
                meter.expect_routes(note.routes)

    # --- what goes --------------------------------------------------------------------------------------------

    def _begin(self, number: int, size_bytes: int, work: Coroutine[Any, Any, None]) -> None:
        if number in self._tasks:
            work.close()
            raise BadFrame("an id that is taken")
        self._bytes[number] = size_bytes
        self._tasks[number] = task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(lambda _: self._ended(number))
        self._read_or_wait()

    def _ended(self, number: int) -> None:
        del self._tasks[number], self._bytes[number]
        self._read_or_wait()

    def _read_or_wait(self) -> None:
        """Read on while this front-end takes its answers and its requests fit."""
        full = self.frames.is_full or sum(self._bytes.values()) > MAX_UNDER_WAY_BYTES
        if full != self._paused:
            self._paused = full
            (self.frames.pause if full else self.frames.resume)()

    async def _ask(self, number: int, request: Request, caller: Caller) -> None:
        answering = self._server.engine.answer(request, caller)
        await self._answer(number, Kind.RESULT, answering, self._encoded, caller)

    def _encoded(self, result: Result) -> list[Buffer]:
        if isinstance(result, ModelList):
            self._server.announce()  # who has asked for a change finds it done
        return encode_result(result)

    async def _call(self, number: int, call: Call) -> None:
        await self._answer(number, Kind.REPLY, self._reply(call), encode_value, Caller())

    async def _answer(
        self,
        number: int,
        kind: Kind,
        work: Awaitable[Any],
        encode: Callable[[Any], list[Buffer]],
        caller: Caller,
    ) -> None:
        """Send what `work` gives, or its error. Cancelled: nobody waits for it any more."""
        try:
            content = encode(await work)
            await self.frames.room()
            self.frames.send(kind, number, content)
        except VectordError as error:
            if isinstance(error, InferenceFailed):  # only here is there a cause to be logged
                log_failure(error, request_id=caller.request_id, method="", route=caller.route)
            self._fail(number, error)
        except BadFrame:
            self._fail(number, PayloadTooLarge(f"The answer has more than {MAX_FRAME_BYTES} bytes; ask for less."))
        except Exception as cause:
            log_failure(cause, request_id=caller.request_id, method="", route=caller.route)
            self._fail(number, VectordError(UNFORESEEN))

    def _fail(self, number: int, error: VectordError) -> None:
        self.frames.send(Kind.ERROR, number, encode_error(error))

    async def _reply(self, call: Call) -> Reply:
        buckets, meter = self._server.buckets, self._server.meter
        match call:
            case DrawAll():
                return await buckets.draw(call.draws)
            case Spend():
                await buckets.spend(call.rate, call.bucket, call.amount)
                return None
            case Expose():
                return None if meter is None else Page(*await meter.exposition(call.accept))
            case Live():
                figures = None if meter is None else meter.live()
                return None if figures is None else orjson.dumps(figures)
