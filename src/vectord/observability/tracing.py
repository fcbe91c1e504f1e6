"""OpenTelemetry traces by OTLP, where an operator names a collector: one server span a request, and its steps in it.

    POST /v1/embeddings ── parse ── tokenize ── queue ── forward ── render

compose.py makes it, handler.py tells it of each request, on the event loop. The steps are made after the fact from the
times that an answer carries anyway, so that a server that sends no traces measures nothing for them. A thread of the
SDK's sends, from a bounded queue; what does not fit there, or no collector takes, is dropped. opentelemetry is imported
by `open_tracing` alone. What it reads for itself are its own names: OTEL_EXPORTER_OTLP_HEADERS, OTEL_TRACES_SAMPLER ...
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from vectord.config import TelemetryConfig
from vectord.observability.exchange import Exchange

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

HTTP_PORT = 4318  # OTLP's own for HTTP; its other one, 4317, is gRPC's
TRACES_PATH = "/v1/traces"
LONGEST_FLUSH_S = 5.0  # at the end, for what has not been sent

_log = logging.getLogger("vectord.tracing")


def open_tracing(config: TelemetryConfig, version: str) -> Tracing | None:
    """None unless a collector is named, spans are wanted, and opentelemetry is installed (if not, it is told)."""
    if config.otlp_endpoint is None or config.disable_spans:
        return None
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.exporter") is None:
        _log.warning("No traces: opentelemetry is not installed here; it comes with pip install 'vectord[otlp]'.")
        return None
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    service = {
        "service.name": config.otlp_service_name,
        "service.version": config.otlp_service_version or version,
    }
    provider = TracerProvider(resource=Resource.create(service), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(_exporter(config.otlp_endpoint, config.otlp_protocol)))
    return Tracing(provider, version)


class RequestSpan:
    """A request's server span, begun. Implements server/handler.py's Span."""

    __slots__ = ("span", "unix_ns_at_zero")

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
    """Implements server/handler.py's Tracer."""

    def __init__(self, provider: TracerProvider, version: str) -> None:
        from opentelemetry import trace  # noqa: PLC0415
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

        self._provider = provider
        self._tracer = provider.get_tracer("vectord", version)
        self._propagator = TraceContextTextMapPropagator()
        self._trace = trace

    def begin(self, method: str, route: str, headers: Mapping[str, str], began_s: float) -> RequestSpan:
        """The span of a request that has just come: a child of the one its headers name, else the first of a trace."""
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
            span.set_attributes(dict(_attributes(exchange)))
            if exchange.status >= 500:
                span.set_status(self._trace.StatusCode.ERROR, exchange.error)
            parent = self._trace.set_span_in_context(span)
            for name, start_s, end_s in _steps(exchange):
                step = self._tracer.start_span(name, context=parent, start_time=begun.unix_ns(start_s))
                step.end(begun.unix_ns(end_s))
        span.end(begun.unix_ns(exchange.ended_s))

    async def close(self, timeout_s: float) -> None:
        """Send what is left. It may take `timeout_s`, and never more than LONGEST_FLUSH_S."""
        loop, sent = asyncio.get_running_loop(), asyncio.Event()

        def flush() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # nobody waited so long, and the loop is closed
                loop.call_soon_threadsafe(sent.set)

        # A daemon, because a collector that hangs must not keep the process.
        threading.Thread(target=flush, name="vectord-traces", daemon=True).start()
        try:
            async with asyncio.timeout(min(timeout_s, LONGEST_FLUSH_S)):
                await sent.wait()
        except TimeoutError:
            _log.warning("the last traces were not sent: the collector takes too long")


def _attributes(exchange: Exchange) -> Iterator[tuple[str, str | int]]:
    """OpenTelemetry's names for HTTP and gRPC, and ours. Never a text, a key, or a path as it was sent."""
    yield from _of_http(exchange) if exchange.grpc_code is None else _of_grpc(exchange, exchange.grpc_code)
    yield "vectord.request_id", exchange.request_id
    yield "vectord.dialect", exchange.dialect
    for name, value in (
        ("error.type", exchange.error),
        ("vectord.key", exchange.key),
        ("vectord.model", exchange.model),
        ("vectord.texts", exchange.texts),
        ("vectord.tokens", exchange.tokens),
    ):
        if value is not None:
            yield name, value


def _of_http(exchange: Exchange) -> Iterator[tuple[str, str | int]]:
    yield "http.request.method", exchange.method
    yield "http.response.status_code", exchange.status
    if exchange.route:
        yield "http.route", exchange.route


def _of_grpc(exchange: Exchange, code: int) -> Iterator[tuple[str, str | int]]:
    service, _, method = exchange.route.removeprefix("/").rpartition("/")
    yield "rpc.system", "grpc"
    yield "rpc.service", service
    yield "rpc.method", method
    yield "rpc.grpc.status_code", code


def _steps(exchange: Exchange) -> Iterator[tuple[str, float, float]]:
    """(name, start, end) on the clock of time.perf_counter. Those of the engine, whose lengths are known, stand one
    behind the other."""
    steps, timings = exchange.steps, exchange.timings
    if steps is None:
        return
    yield "parse", steps.body_read_s, steps.parsed_s
    if timings is not None:
        start_s = steps.parsed_s
        lengths = (("tokenize", timings.tokenizing_s), ("queue", timings.waiting_s), ("forward", timings.computing_s))
        for name, seconds in lengths:
            end_s = min(start_s + seconds, steps.answered_s)
            yield name, start_s, end_s
            start_s = end_s
    yield "render", steps.answered_s, steps.rendered_s


def _exporter(endpoint: str, protocol: str) -> SpanExporter:
    url = endpoint if "://" in endpoint else f"http://{endpoint}"
    if protocol == "http/protobuf" or (protocol == "auto" and _speaks_http(url)):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter as HttpExporter,
        )

        return HttpExporter(url if url.endswith(TRACES_PATH) else url.rstrip("/") + TRACES_PATH)
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415

    return OTLPSpanExporter(url)


def _speaks_http(url: str) -> bool:
    parts = urlsplit(url)
    return parts.port == HTTP_PORT or parts.path.endswith(TRACES_PATH)
