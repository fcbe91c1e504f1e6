"""Connections that send nothing, or slowly, or do not read their answers."""

from __future__ import annotations

import asyncio
import json
import socket

from tests.attack.target import Attempt, Target, insecure_context

LARGE = json.dumps({"input": [f"text {number}" for number in range(1024)], "encoding_format": "float"}).encode()


async def silent_connections(target: Target, attempt: Attempt) -> None:
    """Connections without a byte, held open; under TLS without a handshake."""

    async def one(number: int) -> None:
        async with target.connection(tls=False) as (reader, _):
            try:
                async with asyncio.timeout(attempt.left_s() + 0.1):
                    attempt.saw("closed" if not await reader.read(1) else "answered")
                await asyncio.sleep(0.1)
            except TimeoutError:
                attempt.saw("held")

    await attempt.crowd(one, 4 * attempt.connections)


async def slow_senders(target: Target, attempt: Attempt) -> None:
    """One byte at a time: of a head, and of a body whose length is announced."""
    body = target.post("/v1/embeddings", b" " * 1_000_000)

    async def one(number: int) -> None:
        data = body if number % 2 else b"GET /health/live HTTP/1.1\r\nX-Slow: " + b"a" * 10_000
        start = data.find(b"\r\n\r\n") + 4 if number % 2 else 20
        async with target.connection() as (reader, writer):
            writer.write(data[:start])
            for byte in data[start:]:
                if not attempt.goes_on() or reader.at_eof():
                    break
                writer.write(bytes([byte]))
                await asyncio.sleep(0.2)
            attempt.saw("closed" if reader.at_eof() else "held")

    await attempt.crowd(one)


async def unread_answers(target: Target, attempt: Attempt) -> None:
    """Clients that ask for large answers and read nothing of them, next to others that load the server."""
    request = target.post("/v1/embeddings", LARGE)
    small = target.post("/v1/embeddings", b'{"input": "load"}')

    async def one(number: int) -> None:
        if number % 4 == 0:
            attempt.saw((await target.ask(small)).status)
            return
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        if target.source_address:
            client.bind(target.source_address)
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_connect(client, (target.host, target.port))
            context = insecure_context() if target.is_tls else None
            reader = asyncio.StreamReader(limit=1024)
            transport, _ = await loop.create_connection(
                lambda: asyncio.StreamReaderProtocol(reader),
                sock=client,
                ssl=context,
                server_hostname=target.host if context else None,
            )
            transport.pause_reading()
            transport.write(request)
            await asyncio.sleep(attempt.left_s())
            attempt.saw("unread")
            transport.abort()
        finally:
            client.close()

    await attempt.crowd(one, min(attempt.connections, 120))


async def departures(target: Target, attempt: Attempt) -> None:
    """Clients that send large requests and disconnect without waiting for the answer."""
    request = target.post("/v1/embeddings", json.dumps({"input": ["leaving " * 100] * 32}).encode())

    async def one(number: int) -> None:
        async with target.connection() as (_, writer):
            writer.write(request)
            await writer.drain()
            await asyncio.sleep(0.05)
        attempt.saw("left")

    await attempt.crowd(one, min(attempt.connections, 50))


ATTACKS = (silent_connections, slow_senders, unread_answers, departures)
