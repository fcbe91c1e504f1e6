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
from vectord.dialects.base import Guards, Incoming, RenderError
from vectord.engine.client import EngineClient
from vectord.errors import InferenceFailed, ShuttingDown, VectordError
from vectord.schema import EmbedResult, Result, Usage
from vectord.server.auth import Keys
from vectord.server.body_limit import Body, BodyRoom, ClientLeft, Receive
from vectord.server.body_shape import check_shape
from vectord.server.caller import caller_of
from vectord.server.compression import coding_for, compressed
from vectord.server.departure import while_connected
from vectord.server.media_type import check_media_type
from vectord.server.negotiation import negotiated
from vectord.server.request_id import HEADER as REQUEST_ID
from vectord.server.request_id import request_id
from vectord.server.result_headers import result_headers
from vectord.server.routing import Choice, Found, Table
from vectord.server.served import Served
from vectord.server.shutdown import Shutdown
from vectord.telemetry.logs import log_answer, log_failure
from vectord.wire.rendered import Rendered

Send = Callable[[dict[str, Any]], Awaitable[None]]

BODYLESS = (204, 304)  # statuses whose answers have neither body nor Content-Length
CLIENT_LEFT_STATUS = 499  # nginx's word for it, in logs and metrics only
LINGER_BODIES = 4  # and how much of it, in times what a body may have
LINGER_S = 2.0  # how long a refused upload is read on, so that its sender sees the answer and not a reset


class HttpObserver(Protocol):
    def http_answered(self, dialect: str, route: str, status: int, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Asked:
    """What is known of a request before its body is read."""

    method: str
    headers: Mapping[str, str]  # names in lower case
    request_id: str
    address: str
    found: Found
    can_close: bool  # whether the protocol has a Connection header: HTTP/1 has, HTTP/2 refuses answers with one
    closes: bool  # whether the client wants the connection closed behind the answer


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back, and who gave it. rendered: None when the client left."""

    dialect: str
    rendered: Rendered | None
    result: Result | None = None  # None: an error, or a page

    @property
    def model(self) -> str | None:
        return getattr(self.result, "model", None)

    @property
    def usage(self) -> Usage | None:
        return getattr(self.result, "usage", None)

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
        shutdown: Shutdown,
        observer: HttpObserver | None = None,
    ) -> None:
        self._engine = engine
        self._table = table
        self._shutdown = shutdown
        self._observer = observer
        self._keys = Keys(config.accepted_keys, config.admin_key)
        self._room = BodyRoom(config.payload_limit)
        self._compress_min_bytes = config.compress_min_bytes
        self._guards = Guards(
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
        body = Body(receive, asked.headers)
        answer = await self._answer(asked, body, receive)
        if answer.rendered is not None:
            with suppress(OSError):  # ASGI's word for a client that left while it was being answered
                await self._send(asked, answer.rendered, answer.result, body, send)
        self._tell(asked, answer, time.perf_counter() - began_s)

    def _asked(self, scope: Mapping[str, Any]) -> Asked:
        # Latin-1 maps every byte, so that decoding cannot fail. Of a header that comes twice the last one counts.
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        client = scope.get("client")
        version = scope.get("http_version", "1.1")
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        found = self._table.find(scope["method"], path)
        return Asked(
            method=scope["method"],
            headers=headers,
            request_id=request_id(headers),
            address=client[0] if client else "",
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
            return Answer(dialect, render(error))
        except ClientLeft:
            return Answer(dialect, None)
        except asyncio.CancelledError:  # by run.py, when the time to finish is over
            return Answer(dialect, render(ShuttingDown("The server shut down before this request was finished.")))
        except Exception as cause:
            log_failure(cause, request_id=asked.request_id, method=asked.method, route=asked.found.endpoint.path)
            unforeseen = VectordError("The server failed on this request; its log has the cause under the request id.")
            return Answer(dialect, render(unforeseen))

    async def _admit(self, asked: Asked, body: Body, receive: Receive) -> Answer:
        """All that comes before one dialect is known to be asked."""
        endpoint = asked.found.endpoint
        if endpoint.page is not None:
            return Answer(endpoint.speaker, endpoint.page.show(asked.headers))
        if endpoint.admin:
            self._keys.check_admin(asked.headers)
        elif not endpoint.public:
            self._keys.check(asked.headers)
        if endpoint.error is not None:
            raise endpoint.error
        if self._shutdown.begun:
            raise ShuttingDown
        content = b""
        if endpoint.method not in ("GET", "HEAD"):
            check_media_type(asked.headers)
            content = await body.read(self._room)
            check_shape(content)
        choice = endpoint.choose(content)
        speaking = self._converse(choice, content, asked, receive)
        return await self._guarded(speaking, asked, choice.dialect.name, choice.render_error)

    async def _converse(self, choice: Choice, content: bytes, asked: Asked, receive: Receive) -> Answer:
        """One request in one dialect."""
        caller = caller_of(asked.headers, asked.address, asked.request_id)
        call = choice.route.parse(
            Incoming(
                body=content,
                path=asked.found.values,
                headers=asked.headers,
                models=Served(self._engine),
                guards=self._guards,
            )
        )
        call = negotiated(call, asked.headers)
        try:
            result = await while_connected(self._engine.answer(call.request, caller), receive)
        except VectordError as error:
            raise call.worded(error) from error.__cause__
        return Answer(choice.dialect.name, call.render(result), result)

    async def _send(self, asked: Asked, rendered: Rendered, result: Result | None, body: Body, send: Send) -> None:
        content = rendered.body
        headers = {REQUEST_ID: asked.request_id, **rendered.headers}
        if result is not None:
            headers.update(result_headers(result))
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

    def _tell(self, asked: Asked, answer: Answer, seconds: float) -> None:
        endpoint = asked.found.endpoint
        status = answer.rendered.status if answer.rendered is not None else CLIENT_LEFT_STATUS
        if self._observer is not None:
            self._observer.http_answered(answer.dialect, endpoint.path, status, seconds)
        log_answer(
            # Probes and scrapes come every few seconds for ever, and say nothing while all is well.
            logging.DEBUG if endpoint.page is not None and status < 400 else logging.INFO,
            request_id=asked.request_id,
            method=asked.method,
            route=endpoint.path,
            status=status,
            seconds=seconds,
            model=answer.model,
            tokens=None if answer.usage is None else answer.usage.tokens,
            embedded=answer.embedded,
        )


async def _linger(body: Body, limit_bytes: int) -> None:
    try:
        async with asyncio.timeout(LINGER_S):
            await body.discard(limit_bytes)
    except TimeoutError:
        return
