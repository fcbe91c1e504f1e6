"""Traces as an OpenTelemetry collector receives them, over both protocols of OTLP; and the client's trace context."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.engine.fakes import M3, serving_one
from tests.observability.collectors import attributes_of, grpc_collector, http_collector, service_of, spans_of
from tests.real_server import running
from tests.server.fakes import FakeEngine
from tests.server.live import Reply, ask, get, live, post

from vectord.config import TelemetryConfig
from vectord.observability import tracing
from vectord.observability.exchange import Exchange, Steps
from vectord.observability.metrics import Metrics
from vectord.observability.tracing import Tracing, open_tracing, sampled_trace_id
from vectord.products.common.dialect import load_dialects
from vectord.schema import Timings

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
STEPS = ["parse", "tokenize", "queue", "forward", "render"]


@asynccontextmanager
async def traced(endpoint: str, **settings: Any) -> AsyncIterator[Tracing]:
    """Traces to this collector. Sends the rest at the end."""
    opened = open_tracing(TelemetryConfig(otlp_endpoint=endpoint, **settings), "1.2.3")
    assert opened is not None
    yield opened
    await opened.close(10)


async def embed(tracer: Tracing, headers: dict[str, str], body: object = None) -> Reply:
    """A real engine's answer to one request over a real socket."""
    async with (
        serving_one(M3) as (engine, _),
        live(engine, load_dialects(("openai",)), tracer=tracer) as server,
    ):
        request = post({"model": "m0", "input": ["ab", "cde"]} if body is None else body, "/v1/embeddings", headers)
        return await ask(server, request)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
async def test_a_request_is_a_span_with_its_steps_in_it(protocol: str) -> None:
    """In chronological order, inside the request's span, in the client's trace."""
    collecting = grpc_collector() if protocol == "grpc" else http_collector()
    with collecting as collector:
        sent_as = "grpc" if protocol == "grpc" else "http/protobuf"
        async with traced(collector.endpoint, otlp_protocol=sent_as, otlp_service_name="search") as tracer:
            reply = await embed(tracer, {**SAMPLED, "x-request-id": "id-1"})
        requests = collector.received()
    assert reply.status == 200, reply.body
    spans = spans_of(requests)
    assert list(spans) == [*STEPS, "POST /v1/embeddings"]
    server = spans.pop("POST /v1/embeddings")
    assert (server.trace_id.hex(), server.parent_span_id.hex()) == (TRACE, PARENT)
    assert server.kind == 2  # SERVER
    assert reply.headers["traceparent"] == f"00-{TRACE}-{server.span_id.hex()}-01"
    times = [server.start_time_unix_nano]
    for name in STEPS:
        assert (spans[name].trace_id, spans[name].parent_span_id) == (server.trace_id, server.span_id)
        times += [spans[name].start_time_unix_nano, spans[name].end_time_unix_nano]
    assert sorted(times) == times
    assert times[-1] <= server.end_time_unix_nano
    assert spans["forward"].end_time_unix_nano > spans["forward"].start_time_unix_nano
    attributes = attributes_of(server)
    assert attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/embeddings",
        "http.response.status_code": 200,
        "vectord.request_id": "id-1",
        "vectord.dialect": "openai",
        "vectord.model": "m0",
        "vectord.texts": 2,
        "vectord.tokens": attributes["vectord.tokens"],
    }
    service = service_of(requests[0])
    assert (service["service.name"], service["service.version"]) == ("search", "1.2.3")
    if protocol == "http":
        assert collector.paths == ["/v1/traces"]


async def test_a_step_has_its_own_times() -> None:
    """Time between two steps, such as for a model's load, belongs to neither."""
    timings = Timings(began_s=2, queued_s=7, first_s=8, last_s=9, ended_s=9.5, tokenizing_s=1)
    done = Exchange(method="POST", dialect="d", route="/r", request_id="", began_s=0, ended_s=11, timings=timings)
    done.steps = Steps(1, 2, 10, 10.5)
    with grpc_collector() as collector:
        async with traced(collector.endpoint) as tracer:
            tracer.end(tracer.begin("POST", "/r", {}, 0.0), done)
        spans = spans_of(collector.received())
    zero = spans["POST /r"].start_time_unix_nano
    found = {
        name: (round((each.start_time_unix_nano - zero) / 1e9, 3), round((each.end_time_unix_nano - zero) / 1e9, 3))
        for name, each in spans.items()
    }
    assert found["tokenize"] == (6, 7)
    assert (found["queue"], found["forward"], found["render"]) == ((7, 8), (8, 9), (10, 10.5))


async def test_a_request_without_a_trace_starts_one() -> None:
    """The response names it. A failed request has a span without steps."""
    with grpc_collector() as collector:
        async with traced(collector.endpoint) as tracer:
            reply = await embed(tracer, {}, body=b"{")
        spans = spans_of(collector.received())
    assert reply.status == 400
    (span,) = spans.values()
    assert span.parent_span_id == b""
    named = re.fullmatch("00-([0-9a-f]{32})-([0-9a-f]{16})-0[13]", reply.headers["traceparent"])
    assert named is not None
    assert named.groups() == (span.trace_id.hex(), span.span_id.hex())
    assert attributes_of(span)["error.type"] == "MalformedBody"


async def test_an_unsampled_trace_is_not_sent() -> None:
    """The client's flag decides; the response still names the trace. Probes are not traced."""
    with grpc_collector() as collector:
        async with traced(collector.endpoint) as tracer:
            unkept = await embed(tracer, {"traceparent": f"00-{TRACE}-{PARENT}-00"})
            async with live(FakeEngine(), tracer=tracer) as server:
                probe = await ask(server, get("/health", SAMPLED))
        assert collector.received() == []
    assert re.fullmatch(f"00-{TRACE}-[0-9a-f]{{16}}-00", unkept.headers["traceparent"])
    assert "traceparent" not in probe.headers


async def test_a_hung_collector_does_not_delay_shutdown(caplog: pytest.LogCaptureFixture) -> None:
    """Closing takes the given time at most and logs that spans were lost."""
    gate = threading.Event()
    with grpc_collector(gate) as collector:
        opened = open_tracing(TelemetryConfig(otlp_endpoint=collector.endpoint), "0")
        assert opened is not None
        await embed(opened, SAMPLED)
        with caplog.at_level(logging.WARNING):
            await opened.close(0.1)
        assert not gate.is_set()
        assert "the last traces were not sent" in caplog.text
        gate.set()


def test_a_server_sends_its_last_traces_at_shutdown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK's own schedule would send ten minutes later. The resource has the attributes of the environment."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "600000")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=search,deployment.environment=test")
    with grpc_collector() as collector:
        with running(tmp_path / "log", "--otlp-endpoint", collector.endpoint) as (url, _):
            httpx.post(f"{url}/v1/embeddings", json={"input": "a"}, headers=SAMPLED).raise_for_status()
        requests = collector.received()
    assert list(spans_of(requests)) == [*STEPS, "POST /v1/embeddings"]
    resource = service_of(requests[0])
    assert (resource["service.name"], resource["deployment.environment"]) == ("search", "test")


async def test_server_errors_are_marked() -> None:
    """So that a tracing backend can search for them."""
    engine = FakeEngine()
    engine.error = RuntimeError("boom")
    with grpc_collector() as collector:
        async with traced(collector.endpoint) as tracer, live(engine, tracer=tracer) as server:
            await ask(server, post({"input": "x"}))
        (span,) = spans_of(collector.received()).values()
    assert span.status.code == 2  # ERROR
    assert attributes_of(span)["http.response.status_code"] == 500
    assert "boom" not in str(span)


async def test_exemplars_name_the_servers_own_trace() -> None:
    """The trace id finds the request in the tracing backend."""
    metrics = Metrics("0")
    with grpc_collector() as collector:
        async with traced(collector.endpoint) as tracer, live(FakeEngine(), metrics=metrics, tracer=tracer) as server:
            reply = await ask(server, post({"input": "x"}))
            shown = await ask(server, get("/metrics", {"accept": "application/openmetrics-text"}))
    assert f'trace_id="{reply.headers["traceparent"].split("-")[1]}"'.encode() in shown.body


@pytest.mark.parametrize("settings", [{}, {"otlp_endpoint": "http://127.0.0.1:4317", "disable_spans": True}], ids=str)
def test_nothing_is_traced_without_a_collector_or_with_spans_disabled(settings: dict[str, Any]) -> None:
    """No SDK, no thread, no connection."""
    assert open_tracing(TelemetryConfig(**settings), "0") is None


def test_a_missing_extra_is_logged_and_the_server_starts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Clusters set OTEL_EXPORTER_OTLP_ENDPOINT everywhere."""
    monkeypatch.setattr(tracing, "find_spec", lambda name: None)
    assert open_tracing(TelemetryConfig(otlp_endpoint="http://127.0.0.1:4317"), "0") is None
    assert "[otlp]" in caplog.text


@pytest.mark.parametrize(
    ("name", "value"), [("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"), ("OTEL_BSP_MAX_QUEUE_SIZE", "-1")], ids=str
)
def test_a_variable_that_opentelemetry_refuses_is_logged_and_the_server_starts(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Other languages' libraries read the same variables, in other forms."""
    monkeypatch.setenv(name, value)
    assert open_tracing(TelemetryConfig(otlp_endpoint="http://127.0.0.1:4317"), "0") is None
    assert "No traces: opentelemetry refuses a variable OTEL_*" in caplog.text


def test_opentelemetry_is_not_imported_until_it_is_used() -> None:
    """The import would take a third of the start."""
    program = "import sys, vectord.compose; print([name for name in sys.modules if 'opentelemetry' in name])"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("endpoint", "protocol", "kind"),
    [
        ("http://collector:4317", "auto", "grpc"),
        ("collector:4317", "auto", "grpc"),
        ("http://collector:4318", "auto", "http"),
        ("https://collector/v1/traces", "auto", "http"),
        ("http://collector:4317", "http/protobuf", "http"),
        ("http://collector:4318", "grpc", "grpc"),
    ],
)
def test_the_port_determines_the_protocol_unless_it_is_set(endpoint: str, protocol: str, kind: str) -> None:
    """Port 4318 and path /v1/traces mean HTTP."""
    exporter = tracing._exporter(endpoint, protocol)
    assert f".{kind}." in type(exporter).__module__
    if kind == "http":
        assert exporter._endpoint.endswith("/v1/traces")  # type: ignore[attr-defined]
    exporter.shutdown()


# --- traceparent ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [f"00-{TRACE}-{PARENT}-01", f" 00-{TRACE}-{PARENT}-03", f"01-{TRACE}-{PARENT}-01-new"])
def test_a_sampled_trace_has_an_id(sent: str) -> None:
    """In this version of the header and, as W3C requires, in later ones."""
    assert sampled_trace_id({"traceparent": sent}) == TRACE


@pytest.mark.parametrize(
    "sent",
    [
        "",
        "nonsense",
        f"00-{TRACE}-{PARENT}-00",
        f"00-{'0' * 32}-{PARENT}-01",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f'00-{TRACE[:-1]}"-{PARENT}-01',
    ],
    ids=repr,
)
def test_another_header_has_no_trace_id(sent: str) -> None:
    """Not sampled, invalid, or an attempt to break a metric's line."""
    assert sampled_trace_id({"traceparent": sent}) is None
    assert sampled_trace_id({}) is None
