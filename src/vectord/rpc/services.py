"""Every method of tei.v1 over one engine. grpc calls this on the event loop, in a task for each call.

    metadata -> key -> message -> engine.answer -> message

A lone message that finds the engine full is refused; those of a stream wait. Every VectordError becomes a status; what
nobody foresaw is logged with the request id. A call that is cancelled, or past its deadline, takes its work with it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, TypeAlias, TypeVar

import grpc

from vectord.config import ServerConfig
from vectord.dialects.tei.errors import text_of
from vectord.engine.client import EngineClient
from vectord.errors import InferenceFailed, Overloaded, ShuttingDown, VectordError
from vectord.rpc.caller import address_of, forwarded_of, headers_of
from vectord.rpc.methods import METHODS, RERANK_STREAM, Method
from vectord.rpc.rank_stream import RANK_FIELDS, RankStream
from vectord.rpc.statuses import code_of, trailers_of
from vectord.rpc.streams import in_order
from vectord.schema import Caller, EmbedResult, Request, Result, Usage
from vectord.server.body_room import BodyRoom
from vectord.server.caller import caller_of
from vectord.server.gate import Gate
from vectord.server.keys import Key
from vectord.server.request_id import HEADER as REQUEST_ID
from vectord.server.result_headers import result_headers
from vectord.server.shutdown import Shutdown
from vectord.telemetry.logs import log_answer, log_failure
from vectord.wire.compute_headers import compute_headers
from vectord.wire.failures import retry_after_s
from vectord.wire.wording import worded

T = TypeVar("T")
Messages: TypeAlias = AsyncIterator[bytes]
Fields: TypeAlias = Mapping[str, str]
Context: TypeAlias = Any  # grpc.aio.ServicerContext; grpc comes without types


@dataclass(slots=True)
class Call:
    """One call under way, and what the log will tell of it."""

    context: Context
    caller: Caller
    address: str = ""
    key: Key | None = None
    model: str | None = None
    tokens: int | None = None
    embedded: int | None = None  # texts

    def note(self, result: Result) -> None:
        self.model = getattr(result, "model", None)
        usage = getattr(result, "usage", None)
        if isinstance(usage, Usage):
            self.tokens = (self.tokens or 0) + usage.tokens
        if isinstance(result, EmbedResult):
            self.embedded = (self.embedded or 0) + len(result.usage.lengths)


class Services:
    """grpc's GenericRpcHandler: asked for the handler of each call, before its message is read."""

    def __init__(self, engine: EngineClient, config: ServerConfig, shutdown: Shutdown, gate: Gate) -> None:
        self._engine = engine
        self._shutdown = shutdown
        self._gate = gate
        self._room = BodyRoom(config.payload_limit)
        self._handlers = {method.path: self._handler(method) for method in METHODS}
        self._handlers[RERANK_STREAM] = grpc.stream_unary_rpc_method_handler(
            _answering(self._gate, RERANK_STREAM, self._rank)
        )

    def service(self, details: Any) -> Any:
        """The handler of a method, None for one that is not served. details: grpc.HandlerCallDetails."""
        try:
            self._admit(headers_of(details.invocation_metadata))
        except VectordError as error:
            return _refusing(self._gate, details.method, error)
        return self._handlers.get(details.method)

    def _admit(self, headers: Mapping[str, str]) -> None:
        self._gate.keys.check(headers)
        if self._shutdown.begun:
            raise ShuttingDown

    def _handler(self, method: Method) -> Any:
        """Without grpc's own serialisers: what is not the method's message is for us to word."""
        if method.streams:
            return grpc.stream_stream_rpc_method_handler(
                _answering(self._gate, method.path, partial(self._stream, method))
            )
        return grpc.unary_unary_rpc_method_handler(_answering(self._gate, method.path, partial(self._unary, method)))

    # --- three kinds of calls ---------------------------------------------------------------------------------

    async def _unary(self, method: Method, content: bytes, call: Call) -> bytes:
        asked = method.read(content)
        result = await self._ask(asked.request, asked.fields, len(content), call)
        await call.context.send_initial_metadata(_initial_metadata(result, call.caller))
        return asked.written(result)

    async def _stream(self, method: Method, messages: Messages, call: Call) -> None:
        async def answer(content: bytes) -> bytes:
            asked = method.read(content)
            return asked.written(await self._ask_patiently(asked.request, asked.fields, len(content), call))

        await in_order(messages, answer, call.context.write, self._room.limit_bytes)

    async def _rank(self, messages: Messages, call: Call) -> bytes:
        stream = RankStream(self._room.limit_bytes)

        async def answer(content: bytes) -> Result:
            return await self._ask_patiently(stream.read(content), RANK_FIELDS, len(content), call)

        async def add(result: Result) -> None:
            stream.add(result)

        await in_order(messages, answer, add, self._room.limit_bytes)
        return stream.written()

    async def _ask_patiently(self, request: Request, fields: Fields, content_bytes: int, call: Call) -> Result:
        """For streams: TEI's wait where a lone request is refused."""
        while True:
            try:
                return await self._ask(request, fields, content_bytes, call)
            except Overloaded as busy:
                await asyncio.sleep(retry_after_s(busy))

    async def _ask(self, request: Request, fields: Fields, content_bytes: int, call: Call) -> Result:
        """fields: of errors, the engine's words -> the message's.

        Raises Overloaded, too, where the messages being answered would hold too much together, and RateLimited: each
        message counts as a request.
        """
        await self._gate.limits.check(call.address, call.key, None)
        self._room.hold(content_bytes)
        try:
            result = await self._engine.answer(request, call.caller)
        except VectordError as error:
            raise worded(error, fields) from error.__cause__
        finally:
            self._room.release(content_bytes)
        call.note(result)
        await self._gate.limits.spend(call.key, result)
        return result


# --- what all calls have in common ----------------------------------------------------------------------------


def _answering(
    gate: Gate, path: str, work: Callable[[Any, Call], Awaitable[T]]
) -> Callable[[Any, Context], Awaitable[T]]:
    """`work` as grpc calls it: an error ends the call with its status, and the log gets a line."""

    async def answer(messages: Any, context: Context) -> T:
        began_s = time.perf_counter()
        call = Call(context, Caller())
        code = grpc.StatusCode.CANCELLED
        try:
            headers = headers_of(context.invocation_metadata())
            call.address = gate.address(address_of(context.peer()), forwarded_of(context.invocation_metadata()))
            call.key = gate.keys.known(headers)
            call.caller = caller_of(headers, call.address, call.key)
            answered = await work(messages, call)
            code = grpc.StatusCode.OK
            return answered
        except VectordError as error:
            code = code_of(error)
            if isinstance(error, InferenceFailed):  # ours to look into; the client sees the message alone
                log_failure(error, request_id=call.caller.request_id, method="gRPC", route=path)
            await _abort(call, error)
        except Exception as cause:
            code = grpc.StatusCode.INTERNAL
            log_failure(cause, request_id=call.caller.request_id, method="gRPC", route=path)
            await _abort(call, VectordError("The server failed on this call; its log has the cause."))
        finally:
            _tell(call, path, code, time.perf_counter() - began_s)

    return answer


def _refusing(gate: Gate, path: str, error: VectordError) -> Any:
    """A handler that ends any call unread: to grpc one of streams, which waits for no message."""

    async def refuse(messages: Messages, call: Call) -> None:
        raise error

    return grpc.stream_stream_rpc_method_handler(_answering(gate, path, refuse))


async def _abort(call: Call, error: VectordError) -> NoReturn:
    trailers = ((REQUEST_ID, call.caller.request_id), *trailers_of(error))
    await call.context.abort(code_of(error), text_of(error), trailers)
    raise AssertionError("abort raises")


def _initial_metadata(result: Result, caller: Caller) -> tuple[tuple[str, str], ...]:
    """What HTTP says in headers: the request's name, lengths, vector space, and TEI's figures."""
    headers = {REQUEST_ID: caller.request_id, **result_headers(result)}
    usage = getattr(result, "usage", None)
    if isinstance(usage, Usage):
        headers.update(compute_headers(usage))
    return tuple(headers.items())


def _tell(call: Call, path: str, code: grpc.StatusCode, seconds: float) -> None:
    log_answer(
        logging.INFO,
        request_id=call.caller.request_id,
        method="gRPC",
        route=path,
        status=code.value[0],
        seconds=seconds,
        model=call.model,
        tokens=call.tokens,
        embedded=call.embedded,
        key=None if call.key is None or call.key.shared else call.key.name,
    )
