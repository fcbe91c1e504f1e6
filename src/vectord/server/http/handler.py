"""One ASGI endpoint for every path: bytes in, a dialect's request, the engine's result, a dialect's bytes out.

    headers -> request id -> endpoint -> key -> body -> dialect -> parse -> engine.answer -> render -> compress -> send

Runs on the event loop, once per HTTP request, in the task that the ASGI server made for it. Every VectordError is
rendered by the dialect that was asked; what nobody foresaw is logged with the request id and answered in it too.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from vectord.config import ServerConfig
from vectord.engine.client import EngineClient
from vectord.errors import UNFORESEEN, InferenceFailed, ShuttingDown, VectordError
from vectord.observability.exchange import Exchange, Steps
from vectord.observability.logs import log_answer, log_failure
from vectord.observability.tracing import TRACEPARENT, sampled_trace_id
from vectord.products.common.dialect import Call, Guards, Incoming, Rendered, RenderError, Route
from vectord.schema import Caller, EmbedResult, Result, Timings, Usage
from vectord.server.admission.caller import REQUEST_ID, caller_of, request_id
from vectord.server.admission.gate import Gate
from vectord.server.admission.keys import Key
from vectord.server.http.compression import coding_for, compressed
from vectord.server.http.departure import while_connected
from vectord.server.http.hardening.body_limit import Body, ClientLeft, Receive
from vectord.server.http.hardening.body_room import BodyRoom
from vectord.server.http.hardening.body_shape import check_shape
from vectord.server.http.hardening.unsent import Unsent
from vectord.server.http.media_type import check_media_type
from vectord.server.http.negotiation import negotiated
from vectord.server.http.rendering import Rendering
from vectord.server.http.result_headers import result_headers
from vectord.server.http.routing import Choice, Endpoint, Found, Page, Table
from vectord.server.http.served import Served
from vectord.server.http.server_timing import HEADER as SERVER_TIMING
from vectord.server.http.server_timing import server_timing
from vectord.server.http.shutdown import Shutdown

Send = Callable[[dict[str, Any]], Awaitable[None]]

BODYLESS = (204, 304)  # statuses whose answers have neither body nor Content-Length
CLIENT_LEFT_STATUS = 499  # nginx's word for it, in logs and metrics only
LOOKED_AT_ON_LOOP_BYTES = 2**20  # for what they hold, and who answers: 2 ms
PARSED_ON_LOOP_BYTES = 2**14  # larger bodies in a thread, which costs 0.1 ms; so few may hold 1,000 bodies of their own
LINGER_BODIES = 4  # and how much of it, in times what a body may have
LINGER_S = 2.0  # how long a refused upload is read on, so that its sender sees the answer and not a reset


class Span(Protocol):
    """One request's place in a trace."""

    @property
    def traceparent(self) -> str: ...
    @property
    def trace_id(self) -> str | None:
        """None if this trace is not kept."""
        ...


class Tracer(Protocol):
    """What makes traces (telemetry/tracing.py), where an operator wants them."""

    def begin(self, method: str, route: str, headers: Mapping[str, str], began_s: float) -> Span: ...
    def end(self, span: Any, exchange: Exchange) -> None: ...


@dataclass(frozen=True, slots=True)
class Asked:
    """What is known of a request before its body is read."""

    method: str
    headers: Mapping[str, str]  # names in lower case
    request_id: str
    address: str
    key: Key | None  # None: none, or not one of this server's
    found: Found
    can_close: bool  # whether the protocol has a Connection header: HTTP/1 has, HTTP/2 refuses answers with one
    closes: bool  # whether the client wants the connection closed behind the answer


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back, and who gave it. rendered: None when the client left."""

    dialect: str
    rendered: Rendered | None
    result: Result | None = None  # None: an error, or a page
    steps: Steps | None = None  # of an answer with a result
    error: str | None = None  # its class's name

    @property
    def model(self) -> str | None:
        return getattr(self.result, "model", None)

    @property
    def usage(self) -> Usage | None:
        return getattr(self.result, "usage", None)

    @property
    def timings(self) -> Timings | None:
        return None if self.usage is None else self.usage.timings

    @property
    def embedded(self) -> int | None:
        """How many texts, of an answer with their vectors."""
        return len(self.result.usage.lengths) if isinstance(self.result, EmbedResult) else None


class Handler:
    def __init__(
        self,
        engine: EngineClient,
        table: Table,
        config: ServerConfig,
        gate: Gate,
        shutdown: Shutdown,
        observer: Callable[[Exchange], None] | None = None,
        tracer: Tracer | None = None,
        unsent: Unsent | None = None,
    ) -> None:
        self._engine = engine
        self._table = table
        self._shutdown = shutdown
        self._observer = observer
        self._tracer = tracer
        self._gate = gate
        self._room = BodyRoom(config.payload_limit)
        self._rendering = Rendering(unsent or Unsent(config.payload_limit))
        self._compress_min_bytes = config.compress_min_bytes
        self._guards = Guards(
            max_inputs=engine.models().limits.max_inputs_per_request,
            max_text_chars=config.max_text_chars,
            max_sentences=config.max_sentences_per_request,
            max_passages=config.max_rerank_passages,
        )

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1003})
            return
        began_s = time.perf_counter()
        asked = self._asked(scope)
        span = self._span(asked, began_s)
        body = Body(receive, asked.headers)
        answer = await self._answer(asked, body, receive)
        body.release()
        try:
            if answer.rendered is not None:
                with suppress(OSError):  # ASGI's word for a client that left while it was being answered
                    await self._send(asked, answer, answer.rendered, span, body, send)
        finally:
            if answer.result is not None and answer.rendered is not None:
                self._rendering.written(answer.result, answer.rendered)
        self._tell(asked, answer, span, began_s)

    def _asked(self, scope: Mapping[str, Any]) -> Asked:
        # Latin-1 maps every byte, so that decoding cannot fail. Of a header that comes twice the last one counts.
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        client = scope.get("client")
        version = scope.get("http_version", "1.1")
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        found = self._table.find(scope["method"], path)
        forwarded = (value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for")
        return Asked(
            method=scope["method"],
            headers=headers,
            request_id=request_id(headers),
            address=self._gate.address(client[0] if client else "", forwarded),
            key=None if found.endpoint.open_page is not None else self._gate.keys.lookup(headers),
            found=found,
            can_close=version.startswith("1"),
            closes=version == "1.0" or headers.get("connection", "").lower() == "close",
        )

    async def _answer(self, asked: Asked, body: Body, receive: Receive) -> Answer:
        endpoint = asked.found.endpoint
        return await self._guarded(self._admit(asked, body, receive), asked, endpoint.speaker, endpoint.render_error)

    async def _guarded(self, work: Awaitable[Answer], asked: Asked, dialect: str, render: RenderError) -> Answer:
        """`work`'s answer, or the error it ended in as `dialect` words it. Raises nothing."""
        try:
            return await work
        except VectordError as error:
            if isinstance(error, InferenceFailed):  # ours to look into; the client sees the message alone
                log_failure(error, request_id=asked.request_id, method=asked.method, route=asked.found.endpoint.path)
            return Answer(dialect, render(error), error=type(error).__name__)
        except ClientLeft:
            return Answer(dialect, None, error="ClientLeft")
        except asyncio.CancelledError:  # by run.py, when the time to finish is over
            late = ShuttingDown("The server shut down before this request was finished.")
            return Answer(dialect, render(late), error=type(late).__name__)
        except Exception as cause:
            log_failure(cause, request_id=asked.request_id, method=asked.method, route=asked.found.endpoint.path)
            unforeseen = VectordError(UNFORESEEN)
            return Answer(dialect, render(unforeseen), error=type(unforeseen).__name__)

    async def _admit(self, asked: Asked, body: Body, receive: Receive) -> Answer:
        """All that comes before one dialect is known to be asked."""
        endpoint = asked.found.endpoint
        if endpoint.open_page is not None:
            return await _shown(endpoint.open_page, endpoint.speaker, asked.headers)
        if not endpoint.public:
            await self._gate.admit(asked.address, asked.key, asked.headers, endpoint.dialect, admin=endpoint.admin)
        if endpoint.page is not None:
            return await _shown(endpoint.page, endpoint.speaker, asked.headers)
        if endpoint.error is not None:
            raise endpoint.error
        if self._shutdown.begun:
            raise ShuttingDown
        choice = await self._choice(endpoint, asked, body)
        speaking = self._converse(choice, body, asked, receive)
        return await self._guarded(speaking, asked, choice.dialect.name, choice.render_error)

    async def _choice(self, endpoint: Endpoint, asked: Asked, body: Body) -> Choice:
        """Who answers, by the body, which is read here."""
        if endpoint.method in ("GET", "HEAD"):
            return endpoint.choose(b"")
        check_media_type(asked.headers)
        content = await body.read(self._room)
        if len(content) <= LOOKED_AT_ON_LOOP_BYTES:
            return self._chosen(endpoint, content)
        return await asyncio.to_thread(self._chosen, endpoint, content)

    def _chosen(self, endpoint: Endpoint, content: bytes) -> Choice:
        check_shape(content, self._guards.max_inputs)
        return endpoint.choose(content)

    async def _converse(self, choice: Choice, body: Body, asked: Asked, receive: Receive) -> Answer:
        """One request in one dialect."""
        body_read_s = time.perf_counter()
        if asked.found.endpoint.dialect is None:  # nobody knew before the body was read
            await self._gate.limits.check_dialect(asked.address, asked.key, choice.dialect.name)
        caller = caller_of(asked.headers, asked.address, asked.key, asked.request_id, asked.found.endpoint.path)
        call = negotiated(await self._parse(choice.route, body, asked, caller), asked.headers)
        body.release()
        parsed_s = time.perf_counter()
        try:
            result = await while_connected(self._engine.answer(call.request, caller), receive)
        except VectordError as error:
            raise call.named(error) from error.__cause__
        await self._gate.limits.spend(asked.key, result)
        answered_s = time.perf_counter()
        rendered = await self._rendering.answer(call, result)
        steps = Steps(body_read_s, parsed_s, answered_s, time.perf_counter())
        return Answer(choice.dialect.name, rendered, result, steps)

    async def _parse(self, route: Route, body: Body, asked: Asked, caller: Caller) -> Call:
        """A large body in a thread: it may take a twentieth of a second until its faults are found."""
        models = Served(self._engine, caller)
        incoming = Incoming(
            body=body.content, path=asked.found.values, headers=asked.headers, models=models, guards=self._guards
        )
        if len(body.content) <= PARSED_ON_LOOP_BYTES:
            return route.parse(incoming)
        models.look()
        return await asyncio.to_thread(route.parse, incoming)

    async def _send(
        self, asked: Asked, answer: Answer, rendered: Rendered, span: Span | None, body: Body, send: Send
    ) -> None:
        content = rendered.body
        headers = {REQUEST_ID: asked.request_id, **rendered.headers}
        if answer.result is not None:
            headers.update(result_headers(answer.result))
        if answer.steps is not None:
            headers[SERVER_TIMING] = server_timing(answer.steps, answer.timings)
        if span is not None:
            headers[TRACEPARENT] = span.traceparent
        if self._is_worth_compressing(rendered) and "content-encoding" not in headers:
            headers["vary"] = "accept-encoding"
            coding = coding_for(asked.headers.get("accept-encoding"))
            if coding is not None:
                content = await compressed(content, coding)
                headers["content-encoding"] = coding
        if content:
            headers["content-type"] = rendered.content_type
        if rendered.status not in BODYLESS:
            headers["content-length"] = str(len(content))
        closes = asked.closes or self._shutdown.begun or body.is_unbounded(self._room.limit_bytes)
        lingers = asked.can_close and closes and not body.finished
        if lingers or (asked.can_close and self._shutdown.begun):
            headers["connection"] = "close"
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": rendered.status, "headers": encoded})
        content = b"" if asked.method == "HEAD" else content
        if lingers:
            await send({"type": "http.response.body", "body": content, "more_body": True})
            await _linger(body, LINGER_BODIES * self._room.limit_bytes)
            content = b""
        await send({"type": "http.response.body", "body": content})

    def _is_worth_compressing(self, rendered: Rendered) -> bool:
        """Not the bytes of numbers: they give back 8 % for ten times what it takes to copy them."""
        is_text = rendered.content_type.startswith(("application/json", "text/"))
        return is_text and 0 < self._compress_min_bytes <= len(rendered.body)

    def _span(self, asked: Asked, began_s: float) -> Span | None:
        """Pages have none: probes and scrapes would be most of all traces."""
        endpoint = asked.found.endpoint
        if self._tracer is None or endpoint.page is not None:
            return None
        return self._tracer.begin(asked.method, endpoint.path, asked.headers, began_s)

    def _tell(self, asked: Asked, answer: Answer, span: Span | None, began_s: float) -> None:
        endpoint = asked.found.endpoint
        usage = answer.usage
        exchange = Exchange(
            method=asked.method,
            dialect=answer.dialect,
            route=endpoint.path,
            status=answer.rendered.status if answer.rendered is not None else CLIENT_LEFT_STATUS,
            request_id=asked.request_id,
            began_s=began_s,
            ended_s=time.perf_counter(),
            error=answer.error,
            model=answer.model,
            texts=None if usage is None else len(usage.lengths),
            tokens=None if usage is None else usage.tokens,
            steps=answer.steps,
            timings=answer.timings,
            trace_id=sampled_trace_id(asked.headers) if span is None else span.trace_id,
            key=None if asked.key is None or asked.key.shared else asked.key.name,
        )
        if self._observer is not None:
            self._observer(exchange)
        if self._tracer is not None and span is not None:
            self._tracer.end(span, exchange)
        # Probes and scrapes come every few seconds for ever, and say nothing while all is well.
        quiet = endpoint.page is not None and exchange.status < 400
        log_answer(
            logging.DEBUG if quiet else logging.INFO,
            request_id=exchange.request_id,
            method=exchange.method,
            route=exchange.route,
            status=exchange.status,
            seconds=exchange.seconds,
            model=exchange.model,
            tokens=exchange.tokens,
            embedded=answer.embedded,
            timings=exchange.timings,
            trace_id=exchange.trace_id,
            key=exchange.key,
        )


async def _shown(page: Page, speaker: str, headers: Mapping[str, str]) -> Answer:
    shown = page.show(headers)
    return Answer(speaker, shown if isinstance(shown, Rendered) else await shown)


async def _linger(body: Body, limit_bytes: int) -> None:
    try:
        async with asyncio.timeout(LINGER_S):
            await body.discard(limit_bytes)
    except TimeoutError:
        return
