"""Health checks of the gRPC port."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2 as pb
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub
from tests.server.grpc.fakes import live

from vectord.server.grpc import server
from vectord.server.grpc.server import SERVICES

SERVING, NOT_SERVING = pb.HealthCheckResponse.SERVING, pb.HealthCheckResponse.NOT_SERVING


@pytest.mark.parametrize("service", ["", *sorted(SERVICES)])
async def test_a_ready_server_is_serving(service):
    """As a whole and for each service, without a key."""
    async with live(api_key="hush") as running, grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        answer = await HealthStub(channel).Check(pb.HealthCheckRequest(service=service))
    assert answer.status == SERVING


async def test_an_unknown_service_is_not_found():
    """As the protocol requires."""
    async with live() as running, grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await HealthStub(channel).Check(pb.HealthCheckRequest(service="tei.v2.Embed"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_watcher_receives_the_shutdown(monkeypatch):
    """Serving, then not serving."""
    monkeypatch.setattr(server, "HEALTH_INTERVAL_S", 0.001)
    async with live() as running, grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        watching = HealthStub(channel).Watch(pb.HealthCheckRequest())
        assert (await watching.read()).status == SERVING
        running.shutdown.begin()
        assert (await watching.read()).status == NOT_SERVING
        watching.cancel()


@pytest.mark.parametrize("method", ["Watch", "Check"])
async def test_idle_health_checks_take_no_places_of_other_calls(monkeypatch, method):
    """1,080 clients without a key that watched, or sent no message, had refused every call."""
    monkeypatch.setattr(server, "MAX_CALLS", 8)
    monkeypatch.setattr(server, "MAX_HEALTH_CALLS", 3)
    async with live(api_key="hush") as running, grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        opened = [channel.stream_stream(f"/grpc.health.v1.Health/{method}")() for _ in range(20)]
        ends = [asyncio.create_task(call.code()) for call in opened]
        while sum(end.done() for end in ends) < 17:
            await asyncio.wait([end for end in ends if not end.done()], return_when=asyncio.FIRST_COMPLETED)
        assert {end.result() for end in ends if end.done()} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        answer = await channel.unary_unary("/tei.v1.Info/Info")(b"", metadata=(("authorization", "Bearer hush"),))
        assert answer
        for call in opened:
            call.cancel()


async def listed(port: int, metadata: tuple[tuple[str, str], ...] = ()) -> set[str]:
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        (answer,) = [
            each async for each in ServerReflectionStub(channel).ServerReflectionInfo([request], metadata=metadata)
        ]
    return {service.name for service in answer.list_services_response.service}


async def test_tools_find_the_services_by_reflection():
    """grpcurl then needs no file."""
    async with live() as running:
        assert await listed(running.port) >= SERVICES


async def test_a_server_with_a_key_has_no_reflection():
    """grpc would answer it without the key."""
    async with live(api_key="hush") as running:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await listed(running.port, (("authorization", "Bearer hush"),))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
