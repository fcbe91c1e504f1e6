"""Answers every method of tei.v1. grpc calls this on the event loop, in a task for each call.

    metadata -> key -> message -> RequestPipeline.answer -> message

A single message that finds the queue full is rejected; messages of a stream wait. Every VectordError becomes a status;
unexpected exceptions are logged with the request id. A cancelled or expired call cancels its work.

All methods are registered as methods with a stream of messages: of a refused call of any other, grpc keeps the message
until a full garbage collection.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar
from urllib.parse import unquote

import grpc
import msgspec
from grpc import StatusCode

from vectord import errors
from vectord.budget import Budget
from vectord.config import ServerConfig
from vectord.engine.client import EngineClient
from vectord.errors import MalformedBody, Overloaded, PayloadTooLarge, Unavailable, VectordError
from vectord.observability.tracing import TRACEPARENT
from vectord.products.common.errors import STATUSES, retry_after_s, row_of
from vectord.products.tei.errors import sentence_of
from vectord.products.tei.usage import compute_headers
from vectord.schema import Caller, Result, Usage
from vectord.server.admission.gate import REQUEST_ID
from vectord.server.grpc import tei_pb2 as pb
from vectord.server.grpc.messages import METHODS, RERANK_STREAM, Method, ParsedMessage
from vectord.server.grpc.streams import RankStream, in_order
from vectord.server.http.hardening.head import combined
from vectord.server.http.hardening.http_protocol import MAX_HEADERS
from vectord.server.pipeline import CLIENT_LEFT_STATUS, RequestPipeline, RequestRecord
from vectord.server.results import SMALL_NUMBERS, count_numbers, result_headers

T = TypeVar("T")
Context: TypeAlias = Any  # grpc.aio.ServicerContext; grpc has no types
Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]

DIALECT = "tei"  # the label in the metrics

MAX_MESSAGE_BYTES = 4 * 2**20  # gRPC's default
# grpc limits the number of calls, not their bytes. These limits hold floods of messages of 4 MiB, and clients that do
# not read their responses.
MAX_MESSAGES = 64  # of the largest size, that are in progress together
UNREAD_BYTES = 96 * 2**20  # of large responses
BYTES_PER_NUMBER = 4
# Enough that a batch of short texts fills up, and that one stream does not keep the others from running.
MAX_ACTIVE = 64
MAX_ACTIVE_LARGE = 4  # for responses of possibly several MB: vectors or pieces of all tokens of a text

TOO_MUCH_UNREAD = "Too many large responses wait for gRPC clients that do not read them; try again."

# Clients retry UNAVAILABLE, and RESOURCE_EXHAUSTED if their configuration says so.
CODES: Mapping[type[VectordError], StatusCode] = {
    errors.VectordError: StatusCode.INTERNAL,
    errors.InvalidRequest: StatusCode.INVALID_ARGUMENT,
    errors.ModelNotFound: StatusCode.NOT_FOUND,
    errors.ModelCannot: StatusCode.FAILED_PRECONDITION,
    errors.FingerprintMismatch: StatusCode.FAILED_PRECONDITION,
    errors.Unauthorized: StatusCode.UNAUTHENTICATED,
    errors.Forbidden: StatusCode.PERMISSION_DENIED,
    errors.NoSuchRoute: StatusCode.UNIMPLEMENTED,
    errors.Overloaded: StatusCode.RESOURCE_EXHAUSTED,
    errors.Unavailable: StatusCode.UNAVAILABLE,
    errors.TimedOut: StatusCode.DEADLINE_EXCEEDED,
    errors.InferenceFailed: StatusCode.FAILED_PRECONDITION,
    errors.InferenceTimedOut: StatusCode.DEADLINE_EXCEEDED,
}


def trailers_of(error: VectordError) -> tuple[tuple[str, str], ...]:
    """The trailer with the delay for gRPC's retry policy; none for errors that a retry cannot fix."""
    if isinstance(error, Overloaded | Unavailable):
        return (("grpc-retry-pushback-ms", str(math.ceil(retry_after_s(error) * 1000))),)
    return ()


def headers_of(metadata: Metadata) -> Mapping[str, str]:
    """Metadata as HTTP headers: names in lower case, values as latin-1, those of a repeated name joined by a comma.

    Binary metadata is left out.
    """
    return combined([(name, value.encode().decode("latin-1")) for name, value in metadata if isinstance(value, str)])


def address_of(peer: str) -> str:
    """The IP address of a peer such as "ipv4:127.0.0.1:50000", as HTTP has it, so that both count as one client."""
    scheme, _, rest = peer.partition(":")
    return unquote(rest).rpartition(":")[0].strip("[]") if scheme in ("ipv4", "ipv6") else peer


class GrpcCall(msgspec.Struct, frozen=True):
    context: Context
    record: RequestRecord
    caller: Caller


class Services:
    """grpc's GenericRpcHandler: returns the handler of each call before its message is read."""

    def __init__(self, engine: EngineClient, config: ServerConfig, pipeline: RequestPipeline) -> None:
        self._engine = engine
        self._pipeline = pipeline
        self._limit_bytes = config.payload_limit
        self._in_progress = Budget(MAX_MESSAGES * min(config.payload_limit, MAX_MESSAGE_BYTES))
        self._unread = Budget(UNREAD_BYTES, overshoots=True)
        self._handlers = {method.path: self._handler(method) for method in METHODS}
        self._handlers[RERANK_STREAM] = grpc.stream_unary_rpc_method_handler(self._answering(RERANK_STREAM, self._rank))

    def service(self, details: Any) -> Any:
        """The handler of a method, None for one that is not served. details: grpc.HandlerCallDetails."""
        return self._handlers.get(details.method)

    def _handler(self, method: Method) -> Any:
        """The handler of a method. It has no serializers of grpc, so that an invalid message gets our own error."""
        if method.streams:
            return grpc.stream_stream_rpc_method_handler(self._answering(method.path, partial(self._stream, method)))
        return grpc.stream_unary_rpc_method_handler(self._answering(method.path, partial(self._unary, method)))

    def _answering(
        self, path: str, work: Callable[[GrpcCall], Awaitable[T]]
    ) -> Callable[[object, Context], Awaitable[T]]:
        """`work` as grpc calls it: errors become the call's status, and every call is reported."""

        async def answer(_messages: object, context: Context) -> T:
            entries: Metadata = context.invocation_metadata()
            metadata = entries[:MAX_HEADERS]
            record = self._pipeline.begin("gRPC", path, DIALECT, headers_of(metadata))
            forwarded = [value for name, value in metadata if name == "x-forwarded-for" and isinstance(value, str)]
            status, code = CLIENT_LEFT_STATUS, StatusCode.CANCELLED
            try:
                span = ("", path.removeprefix("/"))  # OpenTelemetry's form for calls
                self._pipeline.identify(record, address_of(context.peer()), forwarded, span=span)
                if len(entries) > MAX_HEADERS:  # grpc limits the size of a frame of them, not of a call
                    raise PayloadTooLarge("A call may have at most {limit} metadata entries.", limit=MAX_HEADERS)
                self._pipeline.gate.keys.require(record.key, record.headers)
                self._pipeline.check_running()
                answered = await work(GrpcCall(context, record, record.caller()))
                status, code = 200, StatusCode.OK
                return answered
            except asyncio.CancelledError as cause:
                raise cause.with_traceback(None) from None  # see errors.drop_frames
            except Exception as cause:
                error = self._pipeline.failed(record, cause)
                status, code = row_of(STATUSES, error), row_of(CODES, error)
            finally:  # HTTP's status, so that one alert on 5xx covers both ports
                self._pipeline.end(record, status, grpc_code=code.value[0])
            await context.abort(code, sentence_of(error), (*_metadata(record).items(), *trailers_of(error)))
            raise AssertionError("abort raises")

        return answer

    # --- three kinds of calls ---------------------------------------------------------------------------------

    async def _unary(self, method: Method, call: GrpcCall) -> bytes:
        content = await call.context.read()
        if content is grpc.aio.EOF:
            raise MalformedBody("The call ended without a message.")

        async def write(message: ParsedMessage, result: Any) -> bytes:
            unread_bytes = _large_bytes(result)
            if unread_bytes:
                if not self._unread.hold(unread_bytes):
                    raise Overloaded(TOO_MUCH_UNREAD, retry_after_s=5.0)
                call.context.add_done_callback(lambda _: self._unread.release(unread_bytes))
            # HTTP's response headers: request id, trace, lengths, vector space, and TEI's compute figures.
            headers = {**_metadata(call.record), **result_headers(result)}
            usage = getattr(result, "usage", None)
            if isinstance(usage, Usage):
                headers.update(compute_headers(usage))
            await call.context.send_initial_metadata(tuple(headers.items()))
            return await self._rendered(message, result)

        parse, ask = partial(method.read, content), partial(self._ask, call, len(content))
        return await self._pipeline.answer(call.record, call.caller, parse, len(content), ask, write)

    async def _stream(self, method: Method, call: GrpcCall) -> None:
        async def deliver(answered: tuple[ParsedMessage, Any]) -> None:
            message, result = answered
            unread_bytes = _large_bytes(result)
            if unread_bytes:
                await self._unread.wait(unread_bytes)
            try:
                await call.context.write(await self._rendered(message, result))
            finally:
                self._unread.release(unread_bytes)

        is_large = method.kind in (pb.EmbedAllRequest, pb.EncodeRequest)
        await self._each(partial(partial, method.read), call, deliver, MAX_ACTIVE_LARGE if is_large else MAX_ACTIVE)

    async def _rank(self, call: GrpcCall) -> bytes:
        stream = RankStream(self._limit_bytes)

        async def add(answered: tuple[ParsedMessage, Any]) -> None:
            message, result = answered
            message.render(result)

        await self._each(stream.begin, call, add, MAX_ACTIVE)
        return await asyncio.to_thread(stream.response)

    async def _each(
        self,
        begin: Callable[[bytes], Callable[[], ParsedMessage]],
        call: GrpcCall,
        deliver: Callable[[tuple[ParsedMessage, Any]], Awaitable[None]],
        max_active: int,
    ) -> None:
        """Deliver the result of each message. A message waits where a single one would be refused, as in TEI.

        begin: called for each message in order, on the event loop; what it returns reads the message on any thread.
        """

        async def ask(n_bytes: int, request: Any, caller: Caller) -> Result:
            while True:
                try:
                    return await self._ask(call, n_bytes, request, caller)
                except Overloaded as overloaded:
                    await asyncio.sleep(retry_after_s(overloaded))

        async def both(message: ParsedMessage, result: Any) -> tuple[ParsedMessage, Any]:
            return message, result

        async def answer(content: bytes) -> tuple[ParsedMessage, Any]:
            n_bytes = len(content)
            answered = await self._pipeline.answer(
                call.record, call.caller, begin(content), n_bytes, partial(ask, n_bytes), both
            )
            call.record.exchange.steps = None  # each message has its own
            return answered

        await in_order(_received(call.context), answer, deliver, max_active=max_active, room=Budget(self._limit_bytes))

    async def _ask(self, call: GrpcCall, n_bytes: int, request: Any, caller: Caller) -> Result:
        """n_bytes: of the message. Raises Overloaded, and RateLimited, since each message counts as a request."""
        await self._pipeline.gate.limits.check(call.record.address, call.record.key, None)
        if not self._in_progress.hold(n_bytes):
            raise Overloaded("Too many large messages are in progress; try again.", retry_after_s=1.0)
        try:
            return await self._engine.answer(request, caller)
        finally:
            self._in_progress.release(n_bytes)

    async def _rendered(self, message: ParsedMessage, result: Result) -> bytes:
        if n_bytes := _large_bytes(result):
            return await self._pipeline.in_thread(partial(message.write, result), n_bytes)
        return message.write(result)


async def _received(context: Context) -> AsyncIterator[bytes]:
    """The messages of a call. grpc's own iterator would keep the last one until a garbage collection."""
    while (message := await context.read()) is not grpc.aio.EOF:
        yield message
        del message


def _large_bytes(result: Result) -> int:
    """The approximate bytes of a large response; 0 for others, which are neither counted nor rendered in a thread."""
    numbers = count_numbers(result)
    return numbers * BYTES_PER_NUMBER if numbers > SMALL_NUMBERS else 0


def _metadata(record: RequestRecord) -> dict[str, str]:
    """The metadata that every response has."""
    trace = {} if record.span is None else {TRACEPARENT: record.span.traceparent}
    return {REQUEST_ID: record.exchange.request_id, **trace}
