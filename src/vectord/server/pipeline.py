"""The steps of every request that do not depend on its transport. http/, grpc/ and batches/ call them.

    begin -> identify -> gate.admit -> answer (parse, engine, count, render) -> (send) -> end

Runs on the event loop. `failed` replaces the later steps: it turns any exception into the error that the client gets.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Protocol, TypeAlias, TypeVar

import msgspec

from vectord.errors import (
    UNFORESEEN,
    ConfigError,
    InferenceFailed,
    Overloaded,
    QueueTimedOut,
    RateLimited,
    ShuttingDown,
    VectordError,
    drop_frames,
)
from vectord.housekeeping import Housekeeping
from vectord.observability.exchange import Exchange, Steps
from vectord.observability.logs import REQUESTS, RefusalLog, log_answer, log_failure
from vectord.observability.tracing import TRACEPARENT, RequestSpan, Tracing, sampled_trace_id
from vectord.products.common.batches import BatchRequest, BatchResult
from vectord.schema import Caller, EmbedRequest, EmbedResult, Request, Result, Usage
from vectord.server.admission.gate import Gate, caller_of, request_id
from vectord.server.admission.keys import KEY_HEADERS, Key
from vectord.server.media_urls import MediaUrls, places_of

_log = logging.getLogger("vectord.server")


class Asked(Protocol):
    """What a body or message asks for: a product's `Call`, or a message of gRPC."""

    @property
    def request(self) -> Request | BatchRequest: ...

    def named(self, error: VectordError) -> VectordError:
        """`error` with the names of this product's fields."""
        ...


C = TypeVar("C", bound=Asked)
T = TypeVar("T")
ExchangeObserver: TypeAlias = Callable[[Exchange], None]
Ask: TypeAlias = Callable[[Request | BatchRequest, Caller], Awaitable[Result | BatchResult]]

# Errors of a flood: thousands in a second, which differ in nothing but their id.
REFUSALS = frozenset(kind.__name__ for kind in (Overloaded, QueueTimedOut, RateLimited))
CLIENT_LEFT_STATUS = 499  # nginx's status for a client that disconnected; in logs and metrics only
REASON_CHARACTERS = 300  # of an error's message in the log: it may quote names that the client sent
CUT_SHORT = "The server shut down before this request was finished."
ON_LOOP_BYTES = 2**14  # larger bodies and messages are parsed in a thread, which costs 0.1 ms
LARGE_BYTES = 2**18  # a larger body's shape is checked, and its product selected, in a thread; below, in 5 ms
LARGE_AT_ONCE = 1  # bodies that are decompressed or parsed at a time: several bombs in as many threads delay probes


class Shutdown:
    """Whether this process is shutting down: begins once and never ends. Event loop only."""

    def __init__(self) -> None:
        self.begun = False
        self._listeners: list[Callable[[], None]] = []

    def begin(self) -> None:
        """From now on new requests are refused. Listeners start to drain their ports."""
        if self.begun:
            return
        self.begun = True
        for listener in self._listeners:
            listener()

    def on_begin(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)


class Reload:
    """SIGHUP: listeners read their certificates again. Event loop only.

    A file that is invalid now is logged, and the previous content stays.
    """

    def __init__(self) -> None:
        self._listeners: list[Callable[[], None]] = []

    def begin(self) -> None:
        _log.info("reading certificates again")
        for listener in self._listeners:
            try:
                listener()
            except ConfigError as problem:
                _log.error("%s; the previous file stays in force", problem.message)

    def on_begin(self, listener: Callable[[], None]) -> None:
        """listener: may raise ConfigError."""
        self._listeners.append(listener)


class RequestRecord(msgspec.Struct):
    """One HTTP request or gRPC call, from its headers to its log line."""

    exchange: Exchange  # reported at the end
    headers: Mapping[str, str]  # names in lower case
    address: str = ""
    key: Key | None = None  # None: no key, or an unknown one
    operator: bool = False  # see Caller
    span: RequestSpan | None = None

    def caller(self) -> Caller:
        """Called after `RequestPipeline.identify`. Raises InvalidField for an invalid header."""
        name, route = self.exchange.request_id, self.exchange.route
        return caller_of(self.headers, self.address, self.key, name, route, operator=self.operator)


class RequestPipeline:
    """One per process."""

    def __init__(
        self,
        gate: Gate,
        shutdown: Shutdown,
        observer: ExchangeObserver | None = None,
        tracer: Tracing | None = None,
        media_urls: MediaUrls | None = None,
    ) -> None:
        """observer: receives every exchange, also refused ones; must not block. media_urls: None refuses them all."""
        self.gate = gate
        self.shutdown = shutdown
        self._media_urls = media_urls or MediaUrls(None, 0)
        self._observer = observer
        self._tracer = tracer
        self._housekeeping = Housekeeping("the report of a request")
        self._refusals = RefusalLog()
        self.large = asyncio.Semaphore(LARGE_AT_ONCE)  # of bodies: a decoder holds the interpreter's lock
        self.reload = Reload()

    def begin(self, method: str, route: str, dialect: str, headers: Mapping[str, str]) -> RequestRecord:
        """The record of a new request. Everything that can fail comes later, so that every failure has a record.

        method: of HTTP, or "gRPC"; route: the path's template or the call's method, "" if nothing is served there.
        """
        began_s = time.perf_counter()
        exchange = Exchange(
            method=method, dialect=dialect, route=route, request_id=request_id(headers), began_s=began_s
        )
        return RequestRecord(exchange, headers)

    def identify(
        self,
        record: RequestRecord,
        peer: str,
        forwarded: Iterable[str],
        *,
        reads_key: bool = True,
        span: tuple[str, str] | None,
    ) -> None:
        """Add the client's address and key, and begin the span.

        peer: the connection's address; forwarded: values of X-Forwarded-For; span: its method and name, None for no
        span.
        """
        if self._tracer is not None and span is not None:
            began_s = record.exchange.began_s
            record.span = self._housekeeping.run(self._tracer.begin, *span, record.headers, began_s)
        record.address = self.gate.address(peer, forwarded)
        keys = self.gate.keys
        if reads_key and not KEY_HEADERS.isdisjoint(record.headers):
            record.key = keys.lookup(record.headers)
        record.operator = keys.anyone_operates if record.key is None else record.key.admin

    def check_running(self) -> None:
        if self.shutdown.begun:
            raise ShuttingDown

    async def answer(
        self,
        record: RequestRecord,
        caller: Caller,
        parse: Callable[[], C],
        n_bytes: int,
        ask: Ask,
        render: Callable[[C, Result | BatchResult], Awaitable[T]],
    ) -> T:
        """What to send for one body or message.

        parse: from its bytes; in a thread if `n_bytes` are many. ask: gets the result, usually of the engine. render:
        from that result. Raises VectordErrors, also those of `ask` and `render`, with the field names of the product.
        """
        began_s = time.perf_counter()
        if n_bytes <= ON_LOOP_BYTES:
            call = parse()
        else:
            call = await self.in_thread(partial(_parse_large, parse), n_bytes)
        del parse  # it may have the body
        parsed_s = time.perf_counter()
        try:
            request = call.request
            has_only_texts = isinstance(request, EmbedRequest) and request.has_only_texts
            if not has_only_texts and (places := places_of(request)):
                request = await self._media_urls.fetched(request, places, caller.client)
            result = await ask(request, caller)
            exchange, usage = record.exchange, getattr(result, "usage", None)
            exchange.model = getattr(result, "model", None)
            if isinstance(usage, Usage):  # a gRPC stream has many results
                texts = len(usage.lengths)
                exchange.texts = (exchange.texts or 0) + texts
                exchange.tokens = (exchange.tokens or 0) + usage.tokens
                exchange.timings = usage.timings
                if isinstance(result, EmbedResult):
                    exchange.embedded = (exchange.embedded or 0) + texts
            if record.key is not None and record.key.tokens_per_minute is not None:
                # The result counts even where the quota is out of reach: with front-ends, the engine's process has it.
                await self._housekeeping.wait(self.gate.limits.spend(record.key, result))
            answered_s = time.perf_counter()
            rendered = await render(call, result)
        except VectordError as error:
            raise call.named(error) from error.__cause__
        record.exchange.steps = Steps(began_s, parsed_s, answered_s, time.perf_counter())
        return rendered

    async def in_thread(self, work: Callable[[], T], n_bytes: int) -> T:
        """The result of `work` on so many bytes. Large bodies one at a time: several would only delay the loop."""
        if n_bytes <= LARGE_BYTES:
            return await asyncio.to_thread(work)
        async with self.large:
            return await asyncio.to_thread(work)

    def failed(self, record: RequestRecord, cause: BaseException) -> VectordError:
        """The error to render. Logs failures of the server under the request id; clients get the message alone.

        Afterwards `cause` has no frames.
        """
        exchange, error = record.exchange, cause
        if isinstance(cause, asyncio.CancelledError):
            error = ShuttingDown(CUT_SHORT)
        elif not isinstance(cause, VectordError) or isinstance(cause, InferenceFailed):
            log_failure(cause, request_id=exchange.request_id, method=exchange.method, route=exchange.route)
        drop_frames(cause)
        if not isinstance(error, VectordError):
            error = VectordError(UNFORESEEN)
        exchange.error = type(error).__name__
        if exchange.error not in REFUSALS:
            text = error.message[:REASON_CHARACTERS]
            exchange.reason = "".join(sign if sign.isprintable() else "?" for sign in text)
        return error

    def end(self, record: RequestRecord, status: int, *, grpc_code: int | None = None, quiet: bool = False) -> None:
        """Report the finished request to metrics, traces and the log. status: of HTTP, or its equivalent for gRPC."""
        exchange = record.exchange
        exchange.status, exchange.grpc_code = status, grpc_code
        exchange.ended_s = time.perf_counter()
        if exchange.steps is None:
            exchange.timings = None
        if record.span is not None:
            exchange.trace_id = record.span.trace_id
        elif TRACEPARENT in record.headers:
            exchange.trace_id = sampled_trace_id(record.headers)
        exchange.key = None if record.key is None or record.key.shared else record.key.name
        if self._observer is not None:
            try:
                self._observer(exchange)
            except Exception as problem:
                self._housekeeping.log(problem)
        if self._tracer is not None and record.span is not None:
            self._housekeeping.run(self._tracer.end, record.span, exchange)
        level = logging.DEBUG if quiet else logging.INFO
        if REQUESTS.isEnabledFor(level) and (exchange.error not in REFUSALS or self._refusals.is_first(exchange.error)):
            self._housekeeping.run(log_answer, level, exchange)


def _parse_large(parse: Callable[[], C]) -> C:
    """`parse()`. Errors lose their traceback, so that a refused list of a million ids is freed in this thread."""
    try:
        return parse()
    except VectordError as error:
        raise error.with_traceback(None) from error.__cause__
