"""One call under way, and what log, metrics and traces are told of it once it is over. Made by services.py."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from grpc import StatusCode

from vectord.errors import InferenceFailed, VectordError
from vectord.observability.exchange import Exchange, Steps
from vectord.observability.logs import log_answer, log_failure
from vectord.observability.tracing import TRACEPARENT, sampled_trace_id
from vectord.products.common.errors import STATUSES, row_of
from vectord.schema import Caller, EmbedResult, Result, Timings, Usage
from vectord.server.admission.keys import Key
from vectord.server.grpc.statuses import code_of
from vectord.server.http.handler import CLIENT_LEFT_STATUS, Span, Tracer

Context: TypeAlias = Any  # grpc.aio.ServicerContext; grpc comes without types

DIALECT = "tei"
METHOD = "gRPC"


@dataclass(slots=True)
class Call:
    """What is known of it so far. path: the method's full name, or "" if none of that name is served."""

    context: Context
    path: str
    caller: Caller = field(default_factory=Caller)
    headers: Mapping[str, str] = field(default_factory=dict)  # its metadata
    address: str = ""
    key: Key | None = None
    span: Span | None = None
    began_s: float = field(default_factory=time.perf_counter)
    code: StatusCode = StatusCode.CANCELLED
    error: VectordError | None = None
    model: str | None = None
    texts: int | None = None
    tokens: int | None = None
    embedded: int | None = None  # texts
    steps: Steps | None = None  # of a call of one message
    timings: Timings | None = None

    def note(self, result: Result) -> None:
        """Of a stream, each of its messages."""
        self.model = getattr(result, "model", None)
        usage = getattr(result, "usage", None)
        if isinstance(usage, Usage):
            self.texts = (self.texts or 0) + len(usage.lengths)
            self.tokens = (self.tokens or 0) + usage.tokens
            self.timings = usage.timings
        if isinstance(result, EmbedResult):
            self.embedded = (self.embedded or 0) + len(result.usage.lengths)

    @property
    def metadata(self) -> dict[str, str]:
        """What goes back whatever comes of it."""
        return {} if self.span is None else {TRACEPARENT: self.span.traceparent}


class Telling:
    """Who is told. On the event loop."""

    def __init__(self, observer: Callable[[Exchange], None] | None, tracer: Tracer | None) -> None:
        self._observer = observer
        self._tracer = tracer

    def began(self, call: Call) -> None:
        """Its span is named as OpenTelemetry names calls: without a verb, and without the path's first slash."""
        if self._tracer is not None:
            call.span = self._tracer.begin("", call.path.removeprefix("/"), call.headers, call.began_s)

    def failed(self, call: Call, error: VectordError) -> None:
        call.error, call.code = error, code_of(error)
        if isinstance(error, InferenceFailed):  # ours to look into; the client sees the message alone
            self.broke(call, error)

    def broke(self, call: Call, cause: Exception) -> None:
        log_failure(cause, request_id=call.caller.request_id, method=METHOD, route=call.path)

    def ended(self, call: Call) -> None:
        exchange = _exchange(call)
        if self._observer is not None:
            self._observer(exchange)
        if self._tracer is not None and call.span is not None:
            self._tracer.end(call.span, exchange)
        log_answer(
            logging.INFO,
            request_id=exchange.request_id,
            method=exchange.method,
            route=exchange.route,
            status=call.code.value[0],
            seconds=exchange.seconds,
            model=exchange.model,
            tokens=exchange.tokens,
            embedded=call.embedded,
            trace_id=exchange.trace_id,
            key=exchange.key,
        )


def _exchange(call: Call) -> Exchange:
    return Exchange(
        method=METHOD,
        dialect=DIALECT,
        route=call.path,
        status=_status(call),
        request_id=call.caller.request_id,
        began_s=call.began_s,
        ended_s=time.perf_counter(),
        error=None if call.error is None else type(call.error).__name__,
        model=call.model,
        texts=call.texts,
        tokens=call.tokens,
        steps=call.steps,
        timings=None if call.steps is None else call.timings,
        key=None if call.key is None or call.key.shared else call.key.name,
        trace_id=sampled_trace_id(call.headers) if call.span is None else call.span.trace_id,
        grpc_code=call.code.value[0],
    )


def _status(call: Call) -> int:
    """HTTP's word for it, so that one alert on 5xx holds for both ports."""
    if call.error is not None:
        return row_of(STATUSES, call.error)
    return 200 if call.code is StatusCode.OK else CLIENT_LEFT_STATUS
