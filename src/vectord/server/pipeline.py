"""The steps of every request that do not depend on its transport. http/handler.py and grpc/services.py call them.

    begin -> identify -> gate.admit -> (read and parse) -> (engine) -> account -> (render and send) -> end

Runs on the event loop. `failed` replaces the later steps: it turns any exception into the error that the client gets.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

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
from vectord.observability.exchange import Exchange
from vectord.observability.logs import RefusalLog, log_answer, log_failure
from vectord.observability.tracing import RequestSpan, Tracing, sampled_trace_id
from vectord.products.common.batches import BatchResult
from vectord.schema import Caller, EmbedResult, Result, Usage
from vectord.server.admission.gate import Gate, caller_of, client_of, request_id
from vectord.server.admission.keys import Key

_log = logging.getLogger("vectord.server")

ExchangeObserver: TypeAlias = Callable[[Exchange], None]

# Errors of a flood: thousands in a second, which differ in nothing but their id.
REFUSALS = frozenset(kind.__name__ for kind in (Overloaded, QueueTimedOut, RateLimited))
CLIENT_LEFT_STATUS = 499  # nginx's status for a client that disconnected; in logs and metrics only
REASON_CHARACTERS = 300  # of an error's message in the log: it may quote names that the client sent
CUT_SHORT = "The server shut down before this request was finished."


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
    """SIGHUP: listeners read their files again, keys and certificates. Event loop only.

    A file that is invalid now is logged, and the previous content stays.
    """

    def __init__(self) -> None:
        self._listeners: list[Callable[[], None]] = []

    def begin(self) -> None:
        _log.info("reading keys and certificates again")
        for listener in self._listeners:
            try:
                listener()
            except ConfigError as problem:
                _log.error("%s; the previous file stays in force", problem.message)

    def on_begin(self, listener: Callable[[], None]) -> None:
        """listener: may raise ConfigError."""
        self._listeners.append(listener)


@dataclass(slots=True)
class RequestRecord:
    """One HTTP request or gRPC call, from its headers to its log line."""

    exchange: Exchange  # reported at the end
    headers: Mapping[str, str]  # names in lower case
    address: str = ""
    key: Key | None = None  # None: no key, or an unknown one
    operator: bool = False  # see Keys.is_operator
    span: RequestSpan | None = None
    _caller: Caller | None = None

    @property
    def client(self) -> str:
        return client_of(self.address, self.key)

    def caller(self) -> Caller:
        """Called after `RequestPipeline.identify`. Raises InvalidField for an invalid header."""
        if self._caller is None:
            name, route = self.exchange.request_id, self.exchange.route
            self._caller = caller_of(self.headers, self.address, self.key, name, route, operator=self.operator)
        return self._caller


class RequestPipeline:
    """One per process."""

    def __init__(
        self, gate: Gate, shutdown: Shutdown, observer: ExchangeObserver | None = None, tracer: Tracing | None = None
    ) -> None:
        """observer: receives every exchange, also refused ones; must not block."""
        self.gate = gate
        self.shutdown = shutdown
        self._observer = observer
        self._tracer = tracer
        self._housekeeping = Housekeeping("the report of a request")
        self._refusals = RefusalLog()
        self.reload = Reload()
        self.reload.on_begin(gate.keys.reload)

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
        record.key = self.gate.keys.lookup(record.headers) if reads_key else None
        record.operator = self.gate.keys.is_operator(record.key)

    def check_running(self) -> None:
        """Raises ShuttingDown."""
        if self.shutdown.begun:
            raise ShuttingDown

    async def account(self, record: RequestRecord, result: Result | BatchResult) -> None:
        """Count a result of the engine, and subtract its tokens from the key's quota. A gRPC stream has many.

        The result counts even where the quota is out of reach: with front-ends, the engine's process has it.
        """
        exchange = record.exchange
        exchange.model = getattr(result, "model", None)
        usage = getattr(result, "usage", None)
        if isinstance(usage, Usage):
            exchange.texts = (exchange.texts or 0) + len(usage.lengths)
            exchange.tokens = (exchange.tokens or 0) + usage.tokens
            exchange.timings = usage.timings
        if isinstance(result, EmbedResult):
            exchange.embedded = (exchange.embedded or 0) + len(result.usage.lengths)
        await self._housekeeping.wait(self.gate.limits.spend(record.key, result))

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
        exchange.trace_id = sampled_trace_id(record.headers) if record.span is None else record.span.trace_id
        exchange.key = None if record.key is None or record.key.shared else record.key.name
        if self._observer is not None:
            self._housekeeping.run(self._observer, exchange)
        if self._tracer is not None and record.span is not None:
            self._housekeeping.run(self._tracer.end, record.span, exchange)
        if exchange.error not in REFUSALS or self._refusals.is_first(exchange.error):
            self._housekeeping.run(log_answer, logging.DEBUG if quiet else logging.INFO, exchange)
