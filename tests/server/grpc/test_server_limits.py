"""The limits of a connection and of a call, which correspond to HTTP's."""

from __future__ import annotations

import asyncio
import gc
import struct

import grpc
import pytest
from grpc import StatusCode
from tests.attack.grpc_frames import PREFACE, SETTINGS, frame
from tests.collection import without_collection
from tests.server.grpc.fakes import FakeEngine, Live, failed, live

from vectord.errors import ModelCannot
from vectord.schema import EmbedRequest
from vectord.server.grpc import server
from vectord.server.grpc import tei_pb2 as pb
from vectord.server.grpc.services import MAX_MESSAGE_BYTES
from vectord.server.http.hardening.http_protocol import MAX_HEADERS

EMBED = "/tei.v1.Embed/Embed"


async def refusal(running: Live, text: str = "abc", **options: object) -> grpc.aio.AioRpcError:
    return await failed(running.call(EMBED, pb.EmbedRequest(inputs=text), **options))


@pytest.mark.parametrize(("settings", "size"), [({}, MAX_MESSAGE_BYTES), ({"payload_limit": 20_000}, 20_000)])
async def test_the_size_of_a_message_is_limited(settings: dict[str, int], size: int) -> None:
    """By payload_limit, and by gRPC's own default."""
    engine = FakeEngine()
    async with live(engine, **settings) as running:
        assert (await refusal(running, "a" * size)).code() is StatusCode.RESOURCE_EXHAUSTED
        assert engine.running == 0
        assert (await running.call(EMBED, pb.EmbedRequest(inputs="abc"))).embeddings[0] == 3


async def test_the_size_of_metadata_is_limited() -> None:
    """By header_limit_bytes, as HTTP's headers."""
    async with live(header_limit_bytes=2048) as running:
        error = await refusal(running, metadata=[("x-large", "v" * 3000)])
        assert error.code() is StatusCode.RESOURCE_EXHAUSTED
        assert (await running.call(EMBED, pb.EmbedRequest(inputs="abc"))).embeddings[0] == 3


async def test_the_number_of_metadata_entries_is_limited() -> None:
    """As that of HTTP's headers."""
    async with live() as running:
        error = await refusal(running, metadata=[(f"x-{number}", "v") for number in range(MAX_HEADERS + 1)])
        assert error.code() is StatusCode.INVALID_ARGUMENT
        assert error.details() == "Input validation error: A call may have at most 256 metadata entries."


async def test_concurrent_calls_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """In all; a further one is refused at once, and one after them is answered."""
    monkeypatch.setattr(server, "MAX_CALLS", 2)
    engine = FakeEngine(held=True)
    async with live(engine) as running:
        calls = [running.call(EMBED, pb.EmbedRequest(inputs="abc")) for _ in range(2)]
        for _ in calls:
            await engine.entered.acquire()
        assert (await refusal(running)).code() is StatusCode.RESOURCE_EXHAUSTED
        engine.gate.set()
        assert [(await call).embeddings[0] for call in calls] == [3, 3]
        assert (await running.call(EMBED, pb.EmbedRequest(inputs="abc"))).embeddings[0] == 3


async def test_streams_of_a_connection_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A further call of the connection waits until one has ended. HTTP/2's setting 3 announces the limit."""
    monkeypatch.setattr(server, "MAX_STREAMS", 2)
    engine = FakeEngine()
    async with live(engine) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(PREFACE + frame(SETTINGS))
        assert struct.pack(">HI", 3, 2) in await reader.readexactly(39)
        writer.close()
        await running.call(EMBED, pb.EmbedRequest(inputs="abc"))  # the client knows the limit from now on
        await engine.entered.acquire()
        engine.gate.clear()
        calls = [running.call(EMBED, pb.EmbedRequest(inputs="abc")) for _ in range(3)]
        for _ in range(2):
            await engine.entered.acquire()
        assert engine.running == 2
        engine.gate.set()
        assert [(await call).embeddings[0] for call in calls] == [3, 3, 3]


async def test_connections_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A further one is closed, and one after them is answered. Connections without a finished handshake count."""
    monkeypatch.setattr(server, "grpc_limit", lambda: 2)
    async with live() as running:
        opened = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(2)]
        for reader, writer in opened[:1]:
            writer.write(PREFACE + frame(SETTINGS))
            assert await reader.read(3)
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
            assert await reader.read() == b""
            writer.close()
        for _, writer in opened:
            writer.close()
        assert (await running.call(EMBED, pb.EmbedRequest(inputs="abc"), wait_for_ready=True)).embeddings[0] == 3


@pytest.mark.parametrize("sent", [b"", PREFACE[:10]], ids=["nothing", "half a preface"])
async def test_a_silent_connection_is_closed(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """After HANDSHAKE_S."""
    monkeypatch.setattr(server, "HANDSHAKE_S", 0.1)
    async with live() as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(sent)
        await reader.read()  # to its end
        writer.close()


@pytest.mark.parametrize("ending", ["answered", "refused", "cancelled", "cancelled stream"])
async def test_an_ended_call_frees_its_message_at_once(ending: str) -> None:
    """grpc keeps the exception of a refused call in a cycle; its frames would have the request until a collection."""
    engine = FakeEngine()
    with without_collection():
        async with live(engine) as running:
            if ending == "answered":
                await running.call(EMBED, pb.EmbedRequest(inputs="abc"))
            elif ending == "refused":
                engine.failures.append(ModelCannot("No."))
                await refusal(running)
            elif ending == "cancelled":
                engine.gate.clear()
                await refusal(running, timeout=0.1)
            else:
                engine.gate.clear()
                stream = running.call(f"{EMBED}Stream", [pb.EmbedRequest(inputs="abc")])
                await engine.entered.acquire()
                stream.cancel()
                await engine.cancelled.acquire()
            (request,) = engine.requests
            engine.requests.clear()
            inputs = request.inputs
            del request
            async with asyncio.timeout(5):
                while [each for each in gc.get_referrers(inputs) if isinstance(each, EmbedRequest)]:
                    await asyncio.sleep(0.01)
