"""Clear errors for any client behaviour, without effect on other requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.server.fakes import FakeEngine
from tests.server.live import Client, Live, connected, get, live, post

from vectord.products.common.dialect import load_dialects
from vectord.server.http import answer

DIALECTS = load_dialects(("openai", "tei"))
LIMIT_BYTES = 1_000_000
HELLO = {"input": "hello"}


@asynccontextmanager
async def with_another_request(engine: FakeEngine | None = None) -> AsyncIterator[Live]:
    """A server with a request of another client in progress, which is answered at the end."""
    engine = engine or FakeEngine()
    async with live(engine, DIALECTS, payload_limit=LIMIT_BYTES) as running, connected(running) as bystander:
        gate = engine.gate
        gate.clear()
        bystander.send(post({"inputs": "hello"}, "/embed"))
        await engine.entered.acquire()
        engine.gate = asyncio.Event()  # the bystander waits at the old one
        engine.gate.set()
        yield running
        gate.set()
        assert (await bystander.reply()).status == 200


async def test_a_refused_upload_gets_its_response() -> None:
    """A client that sends its whole body first is not reset."""
    async with with_another_request() as running, connected(running) as client:
        client.send(post(b"x" * (LIMIT_BYTES + 1000), "/v1/embeddings"))
        await client.writer.drain()
        assert (await client.reply()).status == 413
        assert await client.closed()


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_a_refused_upload_gets_its_response_before_the_connection_closes(version: bytes) -> None:
    """With HTTP/1.0 or Connection: close."""
    async with live(payload_limit=32_000_000) as running, connected(running) as client:
        headers = {"content-type": "image/png", "connection": "close"}
        request = post(b"x" * 16_000_000, headers=headers)
        client.send(request.replace(b"HTTP/1.1", b"HTTP/" + version))
        await client.writer.drain()
        assert (await client.reply()).status == 415
        assert await client.closed()


async def test_an_endless_upload_is_413(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the connection closes after a short time."""
    monkeypatch.setattr(answer, "LINGER_S", 0.1)
    async with with_another_request() as running, connected(running) as client:
        client.send(post(b"", "/v1/embeddings", {"content-length": "", "transfer-encoding": "chunked"}))
        flood = asyncio.create_task(_flood(client))
        assert (await client.reply()).status == 413
        assert await client.closed()
        await flood


async def _flood(client: Client) -> None:
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    try:
        for _ in range(10_000):
            client.send(chunk)
            await client.writer.drain()
    except ConnectionError:
        return
    raise AssertionError("655 MB were taken")


async def test_expect_100_continue() -> None:
    """A client that waits for 100 gets it, and sends its next requests on the same connection."""
    async with live(FakeEngine(), DIALECTS, api_key="k") as running, connected(running) as client:
        body = json.dumps(HELLO).encode()
        head = {"expect": "100-continue", "content-length": str(len(body)), "x-api-key": "k"}
        for _ in range(2):
            client.send(post(b"", "/v1/embeddings", head))
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.send(body)
            assert (await client.reply()).status == 200


@pytest.mark.parametrize("further", [b"", json.dumps(HELLO).encode(), get("/health")])
async def test_a_refused_request_that_waits_for_100_ends_its_connection(
    further: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a client may send its body or leave it out, so the next bytes may be of either."""
    monkeypatch.setattr(answer, "LINGER_S", 0.1)
    async with live(FakeEngine(), DIALECTS, api_key="k") as running, connected(running) as client:
        head = {"expect": "100-continue", "content-length": str(len(json.dumps(HELLO)))}
        client.send(post(b"", "/v1/embeddings", head))
        reply = await client.reply()
        assert (reply.status, reply.headers["connection"]) == (401, "close")
        client.send(further)
        assert await client.closed()


async def test_a_refused_request_leaves_its_connection_usable() -> None:
    """The body of a request with a wrong key is skipped."""
    async with live(FakeEngine(), DIALECTS, api_key="k") as running, connected(running) as client:
        client.send(post(HELLO, "/v1/embeddings"))
        assert (await client.reply()).status == 401
        client.send(post(HELLO, "/v1/embeddings", {"x-api-key": "k"}))
        assert (await client.reply()).status == 200
