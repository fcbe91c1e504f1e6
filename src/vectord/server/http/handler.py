"""The ASGI endpoint of every path: takes one HTTP request from its headers to its response.

    headers -> endpoint -> admission -> body -> product -> pipeline.answer (parse, engine, render) -> send

A busy engine refuses a request before its body is read, or, on a path of several products, before a small body is
parsed.

Runs on the event loop, in the task that the ASGI server creates for each request. The product renders errors; an
unexpected exception becomes status 500 and is logged under the request id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

from vectord.config import ServerConfig
from vectord.engine.client import EngineClient
from vectord.products.common.batches import BatchResult, StoreFile
from vectord.products.common.dialect import Call, Incoming, Rendered, Route
from vectord.schema import Result
from vectord.server.admission.keys import presented_key
from vectord.server.http.answer import HttpCall, Responder, Send
from vectord.server.http.hardening.body import (
    Body,
    BodyRoom,
    ClientDisconnected,
    Receive,
    WatchingDisconnect,
    check_media_type,
)
from vectord.server.http.hardening.connection_limits import OVER_LIMIT
from vectord.server.http.hardening.head import check_head, combined
from vectord.server.http.hardening.write_backpressure import WriteBackpressure
from vectord.server.http.incoming import LazyModelList, guards_of
from vectord.server.http.negotiation import negotiated, vector_format
from vectord.server.http.origins import Origins
from vectord.server.http.routing import Choice, Page, Table
from vectord.server.pipeline import CLIENT_LEFT_STATUS, LARGE_BYTES, ON_LOOP_BYTES, Ask, RequestPipeline


class HttpHandler:
    def __init__(
        self,
        engine: EngineClient,
        table: Table,
        config: ServerConfig,
        pipeline: RequestPipeline,
        backpressure: WriteBackpressure,
        ask: Ask | None = None,
        origins: Origins | None = None,
    ) -> None:
        """ask: answers the requests of all routes; None: the engine does. origins: None creates them from `config`."""
        self._engine = engine
        self._ask = ask or cast("Ask", engine.answer)
        self._table = table
        self._pipeline = pipeline
        self._room = BodyRoom(config.payload_limit, pipeline.large)
        self._responder = Responder(config.compress_min_bytes, config.payload_limit, pipeline.shutdown, backpressure)
        self._guards = guards_of(engine, config)
        self._origins = origins or Origins(config)

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await scope["app"].router.lifespan(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1003})
            return
        found = self._table.find(scope["method"], scope["path"].removeprefix(scope.get("root_path", "")))
        endpoint = found.endpoint
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        record = self._pipeline.begin(scope["method"], endpoint.route, endpoint.owner, combined(headers))
        body = Body(receive, record.headers)
        call = HttpCall(scope, headers, found, record, body, receive, endpoint.render_error)
        rendered: Rendered | None
        try:
            rendered = await self._respond(call)
        except ClientDisconnected:
            record.exchange.error = "ClientLeft"
            rendered = None
        except (Exception, asyncio.CancelledError) as cause:  # run.py cancels requests that outlast the shutdown
            # No name for the error here: with its traceback it would keep this frame, and so the body, in a cycle.
            rendered = call.render_error(self._pipeline.failed(record, cause))
        body.release()
        status = CLIENT_LEFT_STATUS
        if rendered is not None:
            status = rendered.status
            await self._responder.send(call, rendered, send)
        # Probes and scrapes come every few seconds, so successful ones are logged at debug level.
        self._pipeline.end(record, status, quiet=endpoint.page is not None and status < 400)

    async def _respond(self, call: HttpCall) -> Rendered:
        """Raises any error, for `call.render_error`."""
        endpoint, record, pipeline = call.found.endpoint, call.record, self._pipeline
        page = endpoint.page
        check_head(call.scope, call.headers, record.headers)
        self._origins.check(call.scope, record.headers)
        peer = call.scope.get("client")
        pipeline.identify(
            record,
            peer[0] if peer else "",
            (record.headers.get("x-forwarded-for", ""),),
            reads_key=endpoint.open_page is None,
            # Pages have no span: most traces would be probes and scrapes.
            span=None if page is not None else (record.exchange.method, record.exchange.route),
        )
        if (error := call.scope.get(OVER_LIMIT)) is not None and not (page is not None and page.probe):
            raise error
        if endpoint.open_page is None and not endpoint.public:
            await pipeline.gate.admit(
                record.address, record.key, record.headers, endpoint.dialect, admin=endpoint.admin
            )
        elif endpoint.public and not endpoint.probe:
            await pipeline.gate.limits.check(f"pages:{record.address}", None, endpoint.dialect)
        if page is not None:
            return await self._show(page, call)
        if endpoint.error is not None:
            raise endpoint.error
        pipeline.check_running()
        # A small body has arrived with its headers; after its product is known, a refusal has the form of that product.
        checks_early = endpoint.dialect is not None or call.body.declared_bytes > ON_LOOP_BYTES
        caller = None
        if checks_early and endpoint.computes is not None:
            caller = record.caller()
            await self._engine.check_busy(endpoint.computes, caller)
        choice = await self._choose(call)
        call.render_error = choice.render_error
        record.exchange.dialect = choice.dialect.name
        caller = caller or record.caller()
        if choice.route.computes is not None and not checks_early:
            await self._engine.check_busy(choice.route.computes, caller)
        limits = pipeline.gate.limits
        if endpoint.dialect is None and choice.dialect.name in limits.by_dialect:  # the body selected the product
            await limits.check_dialect(record.address, record.key, choice.dialect.name)
        models, n_bytes = LazyModelList(self._engine, caller), len(call.body.content)
        if n_bytes > ON_LOOP_BYTES:
            models.load()  # now, because the body is parsed in a thread
        parse = partial(self._parse, call, choice.route, models)
        with WatchingDisconnect(call.receive):
            return await pipeline.answer(record, caller, parse, n_bytes, self._ask, partial(self._render, call))

    async def _show(self, page: Page, call: HttpCall) -> Rendered:
        record = call.record
        is_probe = page.probe and not page.limited and presented_key(record.headers) is None
        if not page.guarded and not is_probe:  # a probe with a key would be a way to guess keys
            # Pages have a bucket of their own, so that a client that floods the API can still open the console.
            await self._pipeline.gate.limits.check(f"pages:{record.address}", None, None)
        shown = page.show(record.headers)
        return shown if isinstance(shown, Rendered) else await shown

    async def _choose(self, call: HttpCall) -> Choice:
        """Reads the body, which selects the product if several have this path."""
        endpoint, body = call.found.endpoint, call.body
        if endpoint.method in ("GET", "HEAD"):
            return endpoint.choose(b"")
        if endpoint.form:
            await body.read(self._room)
            return endpoint.choose(b"")
        check_media_type(call.record.headers.get("content-type", ""))
        content, max_inputs = await body.read(self._room), self._guards.max_inputs
        if len(content) <= LARGE_BYTES:
            return endpoint.choose(content, max_inputs)
        return await self._pipeline.in_thread(partial(endpoint.choose, content, max_inputs), len(content))

    def _parse(self, call: HttpCall, route: Route, models: LazyModelList) -> Call:
        """The product's call. Releases the body. Runs in a thread for a large one."""
        body, headers = call.body, call.record.headers
        incoming = Incoming(
            body=body.content,
            path=call.found.values,
            query=call.scope.get("query_string", b"").decode("latin-1"),
            headers=headers,
            models=models,
            guards=self._guards,
        )
        parsed = route.parse(incoming)
        if vector_format(headers.get("accept")) is not None:
            parsed = negotiated(parsed, headers)
        if isinstance(parsed.request, StoreFile):
            body.content = b""  # the request has a copy, which counts until it is on the disk
        else:
            body.release()
        return parsed

    async def _render(self, call: HttpCall, parsed: Call, result: Result | BatchResult) -> Rendered:
        rendered = await self._responder.render(parsed, result)
        call.result = result
        return rendered
