"""Metrics and traces of calls."""

from __future__ import annotations

import grpc
import pytest
from tests.observability.collectors import attributes_of, grpc_collector, spans_of
from tests.server.grpc.fakes import PATIENCE_S, FakeEngine, pipeline

from vectord.config import ServerConfig, TelemetryConfig
from vectord.observability.metrics import Metrics
from vectord.observability.tracing import open_tracing
from vectord.server.grpc import tei_pb2 as pb
from vectord.server.grpc.server import serve_grpc

EMBED, PREDICT = "/tei.v1.Embed/Embed", "/tei.v1.Predict/Predict"
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


async def test_a_call_has_metrics_and_a_child_span() -> None:
    """With its full name and steps; errors have their HTTP status."""
    metrics, engine = Metrics("0"), FakeEngine()
    with grpc_collector() as collector:
        tracing = open_tracing(TelemetryConfig(otlp_endpoint=collector.endpoint), "0")
        config = ServerConfig(grpc_port=0)
        async with (
            serve_grpc(engine, config, pipeline(config, observer=metrics.observe, tracer=tracing)) as port,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            embed = channel.unary_unary(EMBED)
            sent = (("traceparent", f"00-{TRACE}-{PARENT}-01"),)
            call = embed(pb.EmbedRequest(inputs="abc").SerializeToString(), metadata=sent, timeout=PATIENCE_S)
            named = dict(await call.initial_metadata())["traceparent"]
            await call
            with pytest.raises(grpc.aio.AioRpcError):
                await channel.unary_unary(PREDICT)(b"", timeout=PATIENCE_S)
        assert tracing is not None
        await tracing.close(10)
        spans = spans_of(collector.received())
    assert engine.callers[0].route == EMBED
    shown = (await metrics.exposition())[0].decode()
    for route, status in ((EMBED, 200), (PREDICT, 400)):
        assert f'vectord_requests_total{{dialect="tei",route="{route}",status="{status}"}} 1.0' in shown
    assert {"parse", "forward", "render", EMBED[1:]} <= set(spans)
    step = spans["forward"]
    assert (step.trace_id.hex(), named.split("-")[1]) == (TRACE, TRACE)
    told = attributes_of(spans[EMBED[1:]])
    assert (told["rpc.system"], told["rpc.service"], told["rpc.method"]) == ("grpc", "tei.v1.Embed", "Embed")
