"""Answers every method of tei.v1. grpc calls this on the event loop, in a task for each call.

    metadata -> key -> message -> engine.answer -> message

A single message that finds the queue full is rejected; messages of a stream wait. Every VectordError becomes a status;
unexpected exceptions are logged with the request id. A cancelled or expired call cancels its work.

All methods are registered as methods with a stream of messages: for others grpc receives the message, of any size,
before it requests the handler.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, TypeAlias, TypeVar, cast

import grpc

from vectord.config import ServerConfig
from vectord.engine.client import EngineClient
from vectord.errors import MalformedBody, Overloaded, PayloadTooLarge, VectordError
from vectord.products.common.errors import retry_after_s
from vectord.products.tei.errors import sentence_of
from vectord.products.tei.usage import compute_headers
from vectord.schema import Caller, RerankRequest, Result, Usage
from vectord.server.grpc.call import (
    SMALL_BYTES,
    Context,
    GrpcCall,
    ResponseWriter,
    UnreadResponses,
    address_of,
    bounded,
    code_of,
    forwarded_of,
    headers_of,
    trailers_of,
)
from vectord.server.grpc.requests import MAX_ACTIVE_SHORT, METHODS, NAMES, RERANK_STREAM, Method, ParsedMessage
from vectord.server.grpc.streams import RankStream, ReceiveSlots, in_order
from vectord.server.http.hardening.body import BodyRoom
from vectord.server.http.hardening.http_protocol import MAX_HEADERS
from vectord.server.http.hardening.write_backpressure import WriteBackpressure
from vectord.server.pipeline import Asked, RequestPipeline
from vectord.server.results import result_headers

C = TypeVar("C", bound=Asked)
T = TypeVar("T")
Messages: TypeAlias = AsyncIterator[bytes]

DIALECT = "tei"  # the label in the metrics

# Of at most MAX_MESSAGE_BYTES each while they are received: 64 MiB for single messages, 128 MiB for streams.
SINGLE_SLOTS = 16
STREAM_SLOTS = 32
SINGLE_GRACE_S = 2.0  # 4 MiB in this time are 17 Mbit/s; applies only if other calls wait
STREAM_GRACE_S = 10.0
SINGLE_TIMEOUT_S = 60.0
TOO_MUCH_METADATA = "A call may have at most {limit} metadata entries."
RANK_NAMES: Mapping[str, str] = {**NAMES, "passages": "text"}


@dataclass(frozen=True, slots=True)
class RankMessage:
    """One message of RerankStream, which has no response of its own."""

    request: RerankRequest

    def named(self, error: VectordError) -> VectordError:
        return error.named(RANK_NAMES)


class Services:
    """grpc's GenericRpcHandler: returns the handler of each call before its message is read."""

    def __init__(
        self, engine: EngineClient, config: ServerConfig, pipeline: RequestPipeline, backpressure: WriteBackpressure
    ) -> None:
        self._engine = engine
        self._pipeline = pipeline
        self._room = BodyRoom(config.payload_limit)
        self._writer = ResponseWriter(backpressure)
        self._single = ReceiveSlots(SINGLE_SLOTS, SINGLE_GRACE_S, SINGLE_TIMEOUT_S)
        self._streamed = ReceiveSlots(STREAM_SLOTS, STREAM_GRACE_S)
        self._max_inputs = engine.models().limits.max_inputs_per_request
        self._handlers = {method.path: self._handler(method) for method in METHODS}
        self._handlers[RERANK_STREAM] = grpc.stream_unary_rpc_method_handler(self._answering(RERANK_STREAM, self._rank))

    def service(self, details: Any) -> Any:
        """The handler of a method, None for one that is not served. details: grpc.HandlerCallDetails."""
        path = details.method if details.method in self._handlers else ""
        headers, keys = headers_of(bounded(details.invocation_metadata)), self._pipeline.gate.keys
        try:
            if len(details.invocation_metadata) > MAX_HEADERS:
                raise PayloadTooLarge(TOO_MUCH_METADATA, limit=MAX_HEADERS)
            keys.require(keys.lookup(headers), headers)
            self._pipeline.check_running()
        except Exception as error:
            return self._refusing(path, error)
        return self._handlers.get(path)

    def _handler(self, method: Method) -> Any:
        """The handler of a method. It has no serializers of grpc, so that an invalid message gets our own error."""
        if method.streams:
            return grpc.stream_stream_rpc_method_handler(self._answering(method.path, partial(self._stream, method)))
        return grpc.stream_unary_rpc_method_handler(self._answering(method.path, partial(self._unary, method)))

    def _refusing(self, path: str, error: Exception) -> Any:
        """A handler that fails without reading a message."""

        async def refuse(messages: Messages, call: GrpcCall) -> None:
            raise error

        return grpc.stream_stream_rpc_method_handler(self._answering(path, refuse))

    def _answering(
        self, path: str, work: Callable[[Any, GrpcCall], Awaitable[T]]
    ) -> Callable[[Any, Context], Awaitable[T]]:
        """`work` as grpc calls it: errors become the call's status, and every call is reported."""

        async def answer(messages: Any, context: Context) -> T:
            metadata = bounded(context.invocation_metadata())
            record = self._pipeline.begin("gRPC", path, DIALECT, headers_of(metadata))
            call = GrpcCall(context, record)
            try:
                span = ("", path.removeprefix("/"))  # OpenTelemetry's form for calls
                self._pipeline.identify(record, address_of(context.peer()), forwarded_of(metadata), span=span)
                call.caller = record.caller()
                answered = await work(messages, call)
                call.code = grpc.StatusCode.OK
                return answered
            except asyncio.CancelledError as cause:
                raise cause.with_traceback(None) from None  # see errors.drop_frames
            except Exception as cause:
                call.error = self._pipeline.failed(record, cause)
                call.code = code_of(call.error)
            finally:
                self._pipeline.end(record, call.http_status, grpc_code=call.code.value[0])
                # A generator in a cycle with its call, which has the last message until a full garbage collection.
                await aiter(messages).aclose()
            assert call.error is not None
            return await _abort(call, call.error)

        return answer

    # --- three kinds of calls ---------------------------------------------------------------------------------

    async def _unary(self, method: Method, messages: Messages, call: GrpcCall) -> bytes:
        content = await self._single.read(messages)
        if content is None:
            raise MalformedBody("The call ended without a message.")

        async def write(message: ParsedMessage, result: Any) -> bytes:
            await call.context.send_initial_metadata(_initial_metadata(result, call))
            return await self._writer.write(message, result)

        read = partial(method.read, content, self._max_inputs)
        written = await self._pipeline.answer(
            call.record, call.caller, read, len(content), partial(self._ask, len(content), call), write
        )
        if len(written) > SMALL_BYTES:
            unread = UnreadResponses(self._writer)
            unread.add(written)
            call.context.add_done_callback(unread.end)
        return written

    async def _stream(self, method: Method, messages: Messages, call: GrpcCall) -> None:
        unread = UnreadResponses(self._writer)

        async def write(message: ParsedMessage, result: Any) -> bytes:
            return unread.add(await retry_overloaded(lambda: self._writer.write(message, result)))

        async def answer(content: bytes) -> bytes:
            return await self._answer(partial(method.read, content, self._max_inputs), len(content), call, write)

        async def deliver(written: bytes) -> None:
            await call.context.write(written)
            unread.remove(written)

        received, limit_bytes = self._streamed.each(messages), self._room.limit_bytes
        try:
            await in_order(received, answer, deliver, max_active=method.max_active, limit_bytes=limit_bytes)
        finally:
            unread.end()

    async def _rank(self, messages: Messages, call: GrpcCall) -> bytes:
        stream = RankStream(self._room.limit_bytes)

        async def show(message: RankMessage, result: Any) -> Result:
            return cast("Result", result)

        async def answer(content: bytes) -> Result:
            return await self._answer(lambda: RankMessage(stream.read(content)), len(content), call, show)

        async def add(result: Result) -> None:
            stream.add(result)

        received, limit_bytes = self._streamed.each(messages), self._room.limit_bytes
        await in_order(received, answer, add, max_active=MAX_ACTIVE_SHORT, limit_bytes=limit_bytes)
        return await asyncio.to_thread(stream.response)

    async def _answer(
        self,
        read: Callable[[], C],
        n_bytes: int,
        call: GrpcCall,
        write: Callable[[C, Any], Awaitable[T]],
    ) -> T:
        """What to send for one message of a stream, which waits where a single one would be refused, as in TEI."""

        async def ask(request: Any, caller: Caller) -> Result:
            return await retry_overloaded(lambda: self._ask(n_bytes, call, request, caller))

        answered = await self._pipeline.answer(call.record, call.caller, read, n_bytes, ask, write)
        call.record.exchange.steps = None  # each message has its own
        return answered

    async def _ask(self, n_bytes: int, call: GrpcCall, request: Any, caller: Caller) -> Result:
        """n_bytes: of the message.

        Raises RateLimited, since each message counts as a request, and Overloaded, also if the messages in progress
        hold too many bytes together.
        """
        await self._pipeline.gate.limits.check(call.record.address, call.record.key, None)
        self._room.hold(n_bytes)
        try:
            return await self._engine.answer(request, caller)
        finally:
            self._room.budget.release(n_bytes)


async def retry_overloaded(work: Callable[[], Awaitable[T]]) -> T:
    """The result of `work`, once there is room."""
    while True:
        try:
            return await work()
        except Overloaded as overloaded:
            await asyncio.sleep(retry_after_s(overloaded))


async def _abort(call: GrpcCall, error: VectordError) -> NoReturn:
    trailers = {**call.metadata, **dict(trailers_of(error))}
    await call.context.abort(call.code, sentence_of(error), tuple(trailers.items()))
    raise AssertionError("abort raises")


def _initial_metadata(result: Result, call: GrpcCall) -> tuple[tuple[str, str], ...]:
    """HTTP's response headers: request id, trace, lengths, vector space, and TEI's compute figures."""
    headers = {**call.metadata, **result_headers(result)}
    usage = getattr(result, "usage", None)
    if isinstance(usage, Usage):
        headers.update(compute_headers(usage))
    return tuple(headers.items())
