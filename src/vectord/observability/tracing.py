"""OpenTelemetry traces over OTLP, if the operator configures a collector: one server span per request, with its steps.

    POST /v1/embeddings ── parse ── tokenize ── queue ── forward ── render

The step spans are created after the answer, from times that it carries anyway. A thread of the SDK sends spans from a
bounded queue, and drops spans when the queue is full or delivery fails. opentelemetry reads further variables itself,
such as OTEL_EXPORTER_OTLP_HEADERS.

`sampled_trace_id` reads W3C's traceparent (https://www.w3.org/TR/trace-context/) for the exemplars of /metrics, also
without traces.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from vectord.config import TelemetryConfig
from vectord.errors import installing
from vectord.observability.exchange import Exchange

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

TRACEPARENT = "traceparent"
SAMPLED = 1
HTTP_PORT = 4318  # OTLP over HTTP; over gRPC it is 4317
TRACES_PATH = "/v1/traces"
LONGEST_FLUSH_S = 5.0  # at shutdown

_traceparent = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-([0-9a-f]{2})(-.*)?", re.ASCII)
_log = logging.getLogger("vectord.tracing")


def sampled_trace_id(headers: Mapping[str, str]) -> str | None:
    """The trace id that the client sent, if its trace is valid and sampled. headers: names in lower case."""
    sent = headers.get(TRACEPARENT)
    if sent is None:
        return None
    found = _traceparent.fullmatch(sent.strip())
    if found is None or sent.startswith("ff") or not found[1].strip("0") or not int(found[2], 16) & SAMPLED:
        return None
    return found[1]


def open_tracing(config: TelemetryConfig, version: str) -> Tracing | None:
    """None without a collector, with spans disabled, or, with a line in the log, if opentelemetry is not installed or
    refuses a variable that it reads itself, such as OTEL_EXPORTER_OTLP_TIMEOUT."""
    if config.otlp_endpoint is None or config.disable_spans:
        return None
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.exporter") is None:
        _log.warning("No traces: opentelemetry is not installed; run %s", installing("otlp"))
        return None
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    service = {"service.name": config.otlp_service_name, "service.version": config.otlp_service_version or version}
    try:
        provider = TracerProvider(resource=Resource.create(service), shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(_exporter(config.otlp_endpoint, config.otlp_protocol)))
    except ValueError as problem:
        _log.warning("No traces: opentelemetry refuses a variable OTEL_*: %s", problem)
        return None
    return Tracing(provider, version)


class RequestSpan:
    def __init__(self, span: Span, unix_ns_at_zero: int) -> None:
        """unix_ns_at_zero: Unix time when time.perf_counter was 0."""
        self.span = span
        self.unix_ns_at_zero = unix_ns_at_zero

    @property
    def traceparent(self) -> str:
        context = self.span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    @property
    def trace_id(self) -> str | None:
        context = self.span.get_span_context()
        return f"{context.trace_id:032x}" if context.trace_flags.sampled else None

    def unix_ns(self, clock_s: float) -> int:
        return self.unix_ns_at_zero + round(clock_s * 1e9)


class Tracing:
    def __init__(self, provider: TracerProvider, version: str) -> None:
        from opentelemetry import trace  # noqa: PLC0415
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

        self._provider = provider
        self._tracer = provider.get_tracer("vectord", version)
        self._propagator = TraceContextTextMapPropagator()
        self._trace = trace

    def begin(self, method: str, route: str, headers: Mapping[str, str], began_s: float) -> RequestSpan:
        """Opens the span of a new request: a child of the span in its headers, else the root of a trace."""
        unix_ns_at_zero = time.time_ns() - time.perf_counter_ns()
        span = self._tracer.start_span(
            f"{method} {route}".strip(),
            context=self._propagator.extract(headers),
            kind=self._trace.SpanKind.SERVER,
            start_time=unix_ns_at_zero + round(began_s * 1e9),
        )
        return RequestSpan(span, unix_ns_at_zero)

    def end(self, begun: RequestSpan, exchange: Exchange) -> None:
        span = begun.span
        if span.is_recording():
            # OpenTelemetry's names for HTTP and gRPC, and ours. Never a text, a key, or the client's path.
            attributes: dict[str, str | int | None] = {
                "vectord.request_id": exchange.request_id,
                "vectord.dialect": exchange.dialect,
                "error.type": exchange.error,
                "vectord.key": exchange.key,
                "vectord.model": exchange.model,
                "vectord.texts": exchange.texts,
                "vectord.tokens": exchange.tokens,
            }
            if exchange.grpc_code is None:
                attributes["http.request.method"] = exchange.method
                attributes["http.response.status_code"] = exchange.status
                attributes["http.route"] = exchange.route or None
            else:
                service, _, method = exchange.route.removeprefix("/").rpartition("/")
                attributes |= {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method}
                attributes["rpc.grpc.status_code"] = exchange.grpc_code
            span.set_attributes({name: value for name, value in attributes.items() if value is not None})
            if exchange.status >= 500:
                span.set_status(self._trace.StatusCode.ERROR, exchange.error)
            parent = self._trace.set_span_in_context(span)
            for name, start_s, end_s in _steps(exchange):
                step = self._tracer.start_span(name, context=parent, start_time=begun.unix_ns(start_s))
                step.end(begun.unix_ns(end_s))
        span.end(begun.unix_ns(exchange.ended_s))

    async def close(self, timeout_s: float) -> None:
        loop, sent = asyncio.get_running_loop(), asyncio.Event()

        def flush() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # the wait is over and the loop is closed
                loop.call_soon_threadsafe(sent.set)

        # A daemon: a hung collector must not keep the process alive.
        threading.Thread(target=flush, name="vectord-traces", daemon=True).start()
        try:
            async with asyncio.timeout(min(timeout_s, LONGEST_FLUSH_S)):
                await sent.wait()
        except TimeoutError:
            _log.warning("the last traces were not sent: the collector takes too long")


def _steps(exchange: Exchange) -> Iterator[tuple[str, float, float]]:
    """(name, start, end) by time.perf_counter. Tokenization ends where the wait in the queue begins."""
    steps, timings = exchange.steps, exchange.timings
    if steps is None:
        return
    yield "parse", steps.body_read_s, steps.parsed_s
    if timings is not None:
        yield "tokenize", max(steps.parsed_s, timings.queued_s - timings.tokenizing_s), timings.queued_s
        yield "queue", timings.queued_s, timings.first_s
        yield "forward", timings.first_s, timings.last_s
    yield "render", steps.answered_s, steps.rendered_s


def _exporter(endpoint: str, protocol: str) -> SpanExporter:
    url = endpoint if "://" in endpoint else f"http://{endpoint}"
    parts = urlsplit(url)
    speaks_http = parts.port == HTTP_PORT or parts.path.endswith(TRACES_PATH)
    if protocol == "http/protobuf" or (protocol == "auto" and speaks_http):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter as HttpExporter,
        )

        return HttpExporter(url if url.endswith(TRACES_PATH) else url.rstrip("/") + TRACES_PATH)
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415

    return OTLPSpanExporter(url)
