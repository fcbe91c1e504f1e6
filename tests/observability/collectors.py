"""OpenTelemetry collectors for tests: OTLP on real sockets, by gRPC and by HTTP, keeping what they get."""

from __future__ import annotations

import gzip
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


@dataclass
class Collector:
    endpoint: str
    requests: queue.Queue[Any] = field(default_factory=queue.Queue)
    paths: list[str] = field(default_factory=list)

    def received(self) -> list[Any]:
        """All requests so far."""
        return [self.requests.get_nowait() for _ in range(self.requests.qsize())]


def spans_of(requests: list[Any]) -> dict[str, Any]:
    """Every span by its name."""
    found = [
        span
        for request in requests
        for each in request.resource_spans
        for scope in each.scope_spans
        for span in scope.spans
    ]
    assert len({span.name for span in found}) == len(found)
    return {span.name: span for span in found}


def service_of(request: Any) -> dict[str, str]:
    return {each.key: each.value.string_value for each in request.resource_spans[0].resource.attributes}


def attributes_of(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


@contextmanager
def grpc_collector(gate: threading.Event | None = None) -> Iterator[Collector]:
    """gate: while it is not set, requests are not answered."""
    server = grpc.server(ThreadPoolExecutor(1))
    collector = Collector(f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")

    def export(request: Any, context: Any) -> Any:
        collector.requests.put(request)
        if gate is not None:
            gate.wait(30)
        return ExportTraceServiceResponse()

    method = grpc.unary_unary_rpc_method_handler(
        export, ExportTraceServiceRequest.FromString, ExportTraceServiceResponse.SerializeToString
    )
    service, name = EXPORT.strip("/").split("/")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: method}),))
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()


@contextmanager
def http_collector() -> Iterator[Collector]:
    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                content = gzip.decompress(content)
            collector.paths.append(self.path)
            collector.requests.put(ExportTraceServiceRequest.FromString(content))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
