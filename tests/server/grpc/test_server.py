"""Opening and closing the port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from tests.server.grpc.fakes import PATIENCE_S, FakeEngine, live, pipeline

from vectord.config import ServerConfig
from vectord.errors import ConfigError
from vectord.server.grpc import server
from vectord.server.grpc import tei_pb2 as pb
from vectord.server.grpc.server import serve_grpc
from vectord.server.pipeline import Shutdown


async def test_a_port_in_use_is_a_config_error():
    """It is not shared with the other program."""
    async with live() as running:
        with pytest.raises(ConfigError, match=f"--grpc-port {running.port} "):
            taken = ServerConfig(grpc_port=running.port)
            async with serve_grpc(FakeEngine(), taken, pipeline(taken)):
                pass


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    """Shutdowns wait only for the engine."""
    monkeypatch.setattr(server, "MIN_DRAIN_S", 0.0)
    monkeypatch.setattr(server, "SEND_S", 0.01)


async def opened(engine: FakeEngine, closing: asyncio.Event, **settings: Any) -> AsyncIterator[int]:
    """A server that closes after `closing` is set."""
    config = ServerConfig(grpc_port=0, **settings)
    async with (
        asyncio.timeout(PATIENCE_S),
        serve_grpc(engine, config, pipeline(config)) as port,
    ):
        yield port
        await closing.wait()


async def test_accepted_calls_are_answered_before_the_port_closes():
    """The block waits for the engine."""
    engine, closing = FakeEngine(held=True), asyncio.Event()
    life = opened(engine, closing)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{await anext(life)}") as channel:
        call = channel.unary_unary("/tei.v1.Embed/Embed")(pb.EmbedRequest(inputs="abc").SerializeToString())
        await engine.entered.acquire()
        closing.set()
        ending = asyncio.create_task(anext(life, None))
        await engine.draining.wait()
        engine.gate.set()
        assert pb.EmbedResponse.FromString(await call).embeddings[0] == 3
        await ending


async def test_calls_beyond_the_timeout_are_cancelled():
    """And their work."""
    engine, closing = FakeEngine(held=True), asyncio.Event()
    life = opened(engine, closing, shutdown_timeout_secs=0.0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{await anext(life)}") as channel:
        call = channel.unary_unary("/tei.v1.Embed/Embed")(pb.EmbedRequest(inputs="abc").SerializeToString())
        await engine.entered.acquire()
        closing.set()
        await anext(life, None)
        with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
            await call
    async with asyncio.timeout(PATIENCE_S):
        await engine.cancelled.acquire()
    assert engine.running == 0


async def test_the_port_may_open_during_a_shutdown():
    """A signal may arrive while the server starts."""
    shutdown = Shutdown()
    shutdown.begin()
    engine, config = FakeEngine(), ServerConfig(grpc_port=0)
    async with serve_grpc(engine, config, pipeline(config, shutdown)):
        pass
    assert engine.draining.is_set()


async def test_an_idle_stream_does_not_keep_the_port_open():
    engine, closing = FakeEngine(), asyncio.Event()
    life = opened(engine, closing)
    for_ever = asyncio.Event()

    async def one_and_no_more() -> AsyncIterator[bytes]:
        yield pb.EmbedRequest(inputs="abc").SerializeToString()
        await for_ever.wait()

    async with grpc.aio.insecure_channel(f"127.0.0.1:{await anext(life)}") as channel:
        stream = channel.stream_stream("/tei.v1.Embed/EmbedStream")(one_and_no_more())
        assert await stream.read()
        closing.set()
        await anext(life, None)
        with pytest.raises(grpc.aio.AioRpcError):
            await stream.read()
