"""The ASGI endpoint of every path: takes one HTTP request from its headers to its response.

    headers -> endpoint -> admission -> body -> product -> parse -> engine.answer -> render -> send

A busy engine refuses a request before its body is read, or, on a path of several products, before a small body is
parsed.

Runs on the event loop, in the task that the ASGI server creates for each request. The product renders errors; an
unexpected exception becomes status 500 and is logged under the request id.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeAlias, TypeVar

from vectord.config import ServerConfig
from vectord.engine.client import EngineClient
from vectord.errors import VectordError
from vectord.observability.exchange import Steps
from vectord.products.common.batches import BatchRequest, BatchResult, StoreFile
from vectord.products.common.body import Content
from vectord.products.common.dialect import Call, Incoming, Rendered, RenderError, Route
from vectord.schema import Caller, Operation, Request, Result
from vectord.server.admission.keys import presented_key
from vectord.server.http.answer import HttpCall, Responder, Send
from vectord.server.http.hardening.body import (
    Body,
    BodyRoom,
    ClientDisconnected,
    Receive,
    cancel_on_disconnect,
    check_media_type,
    check_shape,
)
from vectord.server.http.hardening.connection_limits import OVER_LIMIT
from vectord.server.http.hardening.head import check_head, combined
from vectord.server.http.hardening.write_backpressure import WriteBackpressure
from vectord.server.http.incoming import LazyModelList, guards_of
from vectord.server.http.negotiation import negotiated
from vectord.server.http.origins import Origins
from vectord.server.http.routing import Choice, Table
from vectord.server.pipeline import CLIENT_LEFT_STATUS, RequestPipeline, RequestRecord

T = TypeVar("T")
AnswerBatch: TypeAlias = Callable[[BatchRequest, Caller], Awaitable[BatchResult]]

LARGE_BYTES = 2**18  # a larger body's shape is checked, and its product selected, in a thread; below, in 5 ms
PARSE_ON_LOOP_BYTES = 2**14  # larger bodies are parsed in a thread, which costs 0.1 ms


class HttpHandler:
    def __init__(
        self,
        engine: EngineClient,
        table: Table,
        config: ServerConfig,
        pipeline: RequestPipeline,
        backpressure: WriteBackpressure,
        batches: AnswerBatch | None = None,
        origins: Origins | None = None,
    ) -> None:
        """batches: answers the routes of stored files and batches; None: there are none. origins: None creates them
        from `config`."""
        self._engine = engine
        self._table = table
        self._pipeline = pipeline
        self._room = BodyRoom(config.payload_limit)
        self._responder = Responder(config.compress_min_bytes, config.payload_limit, pipeline.shutdown, backpressure)
        self._guards = guards_of(engine, config)
        self._batches = batches
        self._origins = origins or Origins(config)

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1003})
            return
        found = self._table.find(scope["method"], scope["path"].removeprefix(scope.get("root_path", "")))
        endpoint = found.endpoint
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        record = self._pipeline.begin(scope["method"], endpoint.route, endpoint.owner, combined(headers))
        call = HttpCall(scope, headers, found, record, Body(receive, record.headers), receive)
        rendered = await self._or_error(self._respond(call), record, endpoint.owner, endpoint.render_error)
        call.body.release()
        if rendered is not None:
            await self._responder.send(call, rendered, send)
        status = CLIENT_LEFT_STATUS if rendered is None else rendered.status
        # Probes and scrapes come every few seconds, so successful ones are logged at debug level.
        self._pipeline.end(record, status, quiet=endpoint.page is not None and status < 400)

    async def _or_error(
        self, work: Awaitable[Rendered | None], record: RequestRecord, dialect: str, render: RenderError
    ) -> Rendered | None:
        """The result of `work`, or its error as `dialect` renders it; None if the client disconnected. Raises
        nothing."""
        try:
            return await work
        except ClientDisconnected:
            record.exchange.error = "ClientLeft"
            return None
        except (Exception, asyncio.CancelledError) as cause:  # run.py cancels requests that outlast the shutdown
            record.exchange.dialect = dialect
            # No name for the error here: with its traceback it would keep this frame, and so the body, in a cycle.
            return render(self._pipeline.failed(record, cause))

    async def _respond(self, call: HttpCall) -> Rendered | None:
        """Everything before the product is known."""
        endpoint, record = call.found.endpoint, call.record
        page = endpoint.page
        check_head(call.scope, call.headers, record.headers)
        self._origins.check(call.scope, record.headers)
        peer = call.scope.get("client")
        self._pipeline.identify(
            record,
            peer[0] if peer else "",
            [value for name, value in call.headers if name == "x-forwarded-for"],
            reads_key=endpoint.open_page is None,
            # Pages have no span: most traces would be probes and scrapes.
            span=None if page is not None else (record.exchange.method, record.exchange.route),
        )
        if (error := call.scope.get(OVER_LIMIT)) is not None and not (page is not None and page.probe):
            raise error
        if endpoint.open_page is None and not endpoint.public:
            gate = self._pipeline.gate
            await gate.admit(record.address, record.key, record.headers, endpoint.dialect, admin=endpoint.admin)
        if endpoint.public and not endpoint.probe:
            await self._pipeline.gate.limits.check(f"pages:{record.address}", None, endpoint.dialect)
        if page is not None:
            is_probe = page.probe and not page.limited and presented_key(record.headers) is None
            if not page.guarded and not is_probe:  # a probe with a key would be a way to guess keys
                # Pages have a bucket of their own, so that a client that floods the API can still open the console.
                await self._pipeline.gate.limits.check(f"pages:{record.address}", None, None)
            shown = page.show(record.headers)
            return shown if isinstance(shown, Rendered) else await shown
        if endpoint.error is not None:
            raise endpoint.error
        self._pipeline.check_running()
        # A small body has arrived with its headers; after its product is known, a refusal has the form of that product.
        checks_early = endpoint.dialect is not None or call.body.declared_bytes > PARSE_ON_LOOP_BYTES
        if checks_early:
            await self._check_busy(endpoint.computes, record)
        choice = await self._choose(call)
        record.exchange.dialect = choice.dialect.name
        work = self._converse(call, choice, None if checks_early else choice.route.computes)
        return await self._or_error(work, record, choice.dialect.name, choice.render_error)

    async def _check_busy(self, computes: Operation | None, record: RequestRecord) -> None:
        if computes is not None:
            await self._engine.check_busy(computes, record.caller())

    async def _choose(self, call: HttpCall) -> Choice:
        """Reads the body, which selects the product if several have this path."""
        endpoint, body = call.found.endpoint, call.body
        if endpoint.method in ("GET", "HEAD"):
            return endpoint.choose(b"")
        if endpoint.form:
            await body.read(self._room)
            return endpoint.choose(b"")
        check_media_type(call.record.headers)
        content = await body.read(self._room)

        def choose() -> Choice:
            check_shape(content, self._guards.max_inputs)
            return endpoint.choose(content)

        return choose() if len(content) <= LARGE_BYTES else await self._in_thread(choose, content)

    async def _in_thread(self, call: Callable[[], T], content: Content) -> T:
        """Large bodies one at a time: a decoder holds the interpreter's lock, so several would only delay the loop."""
        async with self._room.large if len(content) > LARGE_BYTES else contextlib.nullcontext():
            return await asyncio.to_thread(call)

    async def _converse(self, call: HttpCall, choice: Choice, unchecked: Operation | None) -> Rendered:
        """The response of one product. unchecked: the operation for which `check_busy` has not been called yet."""
        record, body = call.record, call.body
        body_read_s = time.perf_counter()
        await self._check_busy(unchecked, record)
        if call.found.endpoint.dialect is None:  # the body selected the product
            await self._pipeline.gate.limits.check_dialect(record.address, record.key, choice.dialect.name)
        caller = record.caller()
        parsed = negotiated(await self._parse(call, choice.route, caller), record.headers)
        if isinstance(parsed.request, StoreFile):
            body.content = b""  # the request has a copy, which counts until it is on the disk
        else:
            body.release()
        parsed_s = time.perf_counter()
        try:
            result = await cancel_on_disconnect(self._answer(parsed.request, caller), call.receive)
        except VectordError as error:
            raise parsed.named(error) from error.__cause__
        await self._pipeline.account(record, result)
        answered_s = time.perf_counter()
        rendered = await self._responder.render(parsed, result)
        record.exchange.steps = Steps(body_read_s, parsed_s, answered_s, time.perf_counter())
        call.result = result
        return rendered

    def _answer(self, request: Request | BatchRequest, caller: Caller) -> Awaitable[Result | BatchResult]:
        if isinstance(request, BatchRequest):
            assert self._batches is not None, "its routes exist only with it"
            return self._batches(request, caller)
        return self._engine.answer(request, caller)

    async def _parse(self, call: HttpCall, route: Route, caller: Caller) -> Call:
        models, body = LazyModelList(self._engine, caller), call.body.content
        incoming = Incoming(
            body=body,
            path=call.found.values,
            query=call.scope.get("query_string", b"").decode("latin-1"),
            headers=call.record.headers,
            models=models,
            guards=self._guards,
        )
        if len(body) <= PARSE_ON_LOOP_BYTES:
            return route.parse(incoming)
        models.load()
        return await self._in_thread(partial(_parse_large, route, incoming), incoming.body)


def _parse_large(route: Route, incoming: Incoming) -> Call:
    """`route.parse`. Errors lose their traceback, so that a refused list of a million ids is freed in this thread."""
    try:
        return route.parse(incoming)
    except VectordError as error:
        raise error.with_traceback(None) from error.__cause__
