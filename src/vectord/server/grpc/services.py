"""Every method of tei.v1 over one engine. grpc calls this on the event loop, in a task for each call.

    metadata -> key -> message -> engine.answer -> message

A lone message that finds the engine full is refused; those of a stream wait. Every VectordError becomes a status; what
nobody foresaw is logged with the request id. A call that is cancelled, or past its deadline, takes its work with it.

To grpc every method takes a stream: it reads a lone message before it asks for its handler's place, however large.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any, NoReturn, TypeAlias, TypeVar

import grpc

from vectord.config import ServerConfig
from vectord.engine.client import EngineClient
from vectord.errors import MalformedBody, Overloaded, ShuttingDown, VectordError
from vectord.observability.exchange import Steps
from vectord.products.common.errors import retry_after_s
from vectord.products.common.usage import compute_headers
from vectord.products.tei.errors import sentence_of
from vectord.schema import Request, Result, Usage
from vectord.server.admission.caller import REQUEST_ID, caller_of
from vectord.server.admission.gate import Gate
from vectord.server.grpc.call import Call, Context, Telling
from vectord.server.grpc.caller import address_of, forwarded_of, headers_of
from vectord.server.grpc.methods import METHODS, RERANK_STREAM, SHORT_AT_ONCE, Method
from vectord.server.grpc.rank_stream import RANK_FIELDS, RankStream
from vectord.server.grpc.receipts import Receipts
from vectord.server.grpc.requests import Asked
from vectord.server.grpc.statuses import trailers_of
from vectord.server.grpc.streams import in_order
from vectord.server.grpc.writing import Writing
from vectord.server.http.hardening.body_room import BodyRoom
from vectord.server.http.hardening.unsent import Unsent
from vectord.server.http.result_headers import result_headers
from vectord.server.http.shutdown import Shutdown

T = TypeVar("T")
Messages: TypeAlias = AsyncIterator[bytes]
Fields: TypeAlias = Mapping[str, str]

# Of MAX_MESSAGE_BYTES each while they come: 64 MiB of lone ones, 128 MiB of streams.
LONE_AT_ONCE = 16
STREAMS_AT_ONCE = 32
LONE_GRACE_S = 2.0  # 4 MiB in that time are 17 Mbit/s; asked for only where others wait
STREAM_GRACE_S = 10.0  # of silence
LONE_LONGEST_S = 60.0
READ_ON_LOOP_BYTES = 2**14  # larger messages in a thread


class Services:
    """grpc's GenericRpcHandler: asked for the handler of each call, before its message is read."""

    def __init__(
        self,
        engine: EngineClient,
        config: ServerConfig,
        shutdown: Shutdown,
        gate: Gate,
        telling: Telling,
        unsent: Unsent,
    ) -> None:
        self._engine = engine
        self._shutdown = shutdown
        self._gate = gate
        self._telling = telling
        self._room = BodyRoom(config.payload_limit)
        self._writing = Writing(unsent)
        self._lone = Receipts(LONE_AT_ONCE, LONE_GRACE_S, LONE_LONGEST_S)
        self._streamed = Receipts(STREAMS_AT_ONCE, STREAM_GRACE_S)
        self._max_inputs = engine.models().limits.max_inputs_per_request
        self._handlers = {method.path: self._handler(method) for method in METHODS}
        self._handlers[RERANK_STREAM] = grpc.stream_unary_rpc_method_handler(self._answering(RERANK_STREAM, self._rank))

    def service(self, details: Any) -> Any:
        """The handler of a method, None for one that is not served. details: grpc.HandlerCallDetails."""
        path = details.method if details.method in self._handlers else ""
        try:
            self._admit(headers_of(details.invocation_metadata))
        except VectordError as error:
            return self._refusing(path, error)
        return self._handlers.get(path)

    def _admit(self, headers: Mapping[str, str]) -> None:
        self._gate.keys.require(self._gate.keys.lookup(headers), headers)
        if self._shutdown.begun:
            raise ShuttingDown

    def _handler(self, method: Method) -> Any:
        """Without grpc's own serialisers: what is not the method's message is for us to word."""
        if method.streams:
            return grpc.stream_stream_rpc_method_handler(self._answering(method.path, partial(self._stream, method)))
        return grpc.stream_unary_rpc_method_handler(self._answering(method.path, partial(self._unary, method)))

    def _refusing(self, path: str, error: VectordError) -> Any:
        """A handler that ends any call unread."""

        async def refuse(messages: Messages, call: Call) -> None:
            raise error

        return grpc.stream_stream_rpc_method_handler(self._answering(path, refuse))

    def _answering(
        self, path: str, work: Callable[[Any, Call], Awaitable[T]]
    ) -> Callable[[Any, Context], Awaitable[T]]:
        """`work` as grpc calls it: an error ends the call with its status, and whoever is to be told is told."""

        async def answer(messages: Any, context: Context) -> T:
            call = Call(context, path, headers=headers_of(context.invocation_metadata()))
            try:
                call.address = self._gate.address(
                    address_of(context.peer()), forwarded_of(context.invocation_metadata())
                )
                call.key = self._gate.keys.lookup(call.headers)
                self._telling.began(call)
                call.caller = caller_of(call.headers, call.address, call.key, route=path)
                answered = await work(messages, call)
                call.code = grpc.StatusCode.OK
                return answered
            except VectordError as error:
                self._telling.failed(call, error)
                await _abort(call, error)
            except Exception as cause:
                self._telling.broke(call, cause)
                unforeseen = VectordError("The server failed on this call; its log has the cause.")
                self._telling.failed(call, unforeseen)
                await _abort(call, unforeseen)
            finally:
                self._telling.ended(call)

        return answer

    # --- three kinds of calls ---------------------------------------------------------------------------------

    async def _unary(self, method: Method, messages: Messages, call: Call) -> bytes:
        content = await self._lone.read(messages)
        if content is None:
            raise MalformedBody("The call ended without a message.")
        received_s = time.perf_counter()
        asked = await self._read(method, content)
        parsed_s = time.perf_counter()
        result = await self._ask(asked.request, asked.fields, len(content), call)
        answered_s = time.perf_counter()
        await call.context.send_initial_metadata(_initial_metadata(result, call))
        written = await self._writing.answer(asked, result)
        call.context.add_done_callback(self._writing.hold(written))
        call.steps = Steps(received_s, parsed_s, answered_s, time.perf_counter())
        return written

    async def _stream(self, method: Method, messages: Messages, call: Call) -> None:
        with self._writing.held() as held:

            async def answer(content: bytes) -> bytes:
                asked = await self._read(method, content)
                result = await self._ask_patiently(asked.request, asked.fields, len(content), call)
                return held.made(await patiently(lambda: self._writing.answer(asked, result)))

            async def deliver(written: bytes) -> None:
                await call.context.write(written)
                held.taken(written)

            received, limit_bytes = self._streamed.each(messages), self._room.limit_bytes
            await in_order(received, answer, deliver, at_once=method.at_once, limit_bytes=limit_bytes)

    async def _rank(self, messages: Messages, call: Call) -> bytes:
        stream = RankStream(self._room.limit_bytes)

        async def answer(content: bytes) -> Result:
            return await self._ask_patiently(stream.read(content), RANK_FIELDS, len(content), call)

        async def add(result: Result) -> None:
            stream.add(result)

        received, limit_bytes = self._streamed.each(messages), self._room.limit_bytes
        await in_order(received, answer, add, at_once=SHORT_AT_ONCE, limit_bytes=limit_bytes)
        return await asyncio.to_thread(stream.written)

    async def _read(self, method: Method, content: bytes) -> Asked:
        if len(content) <= READ_ON_LOOP_BYTES:
            return method.read(content, self._max_inputs)
        return await asyncio.to_thread(method.read, content, self._max_inputs)

    async def _ask_patiently(self, request: Request, fields: Fields, content_bytes: int, call: Call) -> Result:
        return await patiently(lambda: self._ask(request, fields, content_bytes, call))

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
            raise error.named(fields) from error.__cause__
        finally:
            self._room.release(content_bytes)
        call.note(result)
        await self._gate.limits.spend(call.key, result)
        return result


async def patiently(work: Callable[[], Awaitable[T]]) -> T:
    """For streams: TEI's wait where a lone request is refused."""
    while True:
        try:
            return await work()
        except Overloaded as busy:
            await asyncio.sleep(retry_after_s(busy))


async def _abort(call: Call, error: VectordError) -> NoReturn:
    trailers = {REQUEST_ID: call.caller.request_id, **call.metadata, **dict(trailers_of(error))}
    await call.context.abort(call.code, sentence_of(error), tuple(trailers.items()))
    raise AssertionError("abort raises")


def _initial_metadata(result: Result, call: Call) -> tuple[tuple[str, str], ...]:
    """What HTTP says in headers: the request's name, its place in a trace, lengths, vector space, TEI's figures."""
    headers = {REQUEST_ID: call.caller.request_id, **call.metadata, **result_headers(result)}
    usage = getattr(result, "usage", None)
    if isinstance(usage, Usage):
        headers.update(compute_headers(usage))
    return tuple(headers.items())
