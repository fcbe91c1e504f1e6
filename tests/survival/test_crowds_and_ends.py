"""The real server with a thousand clients, with disconnecting clients, and with SIGTERM under load."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import urlsplit

import httpx
import numpy as np
from tests.real_server import running

HEAD = "POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"


def request_bytes(text: str) -> bytes:
    body = json.dumps({"input": text, "encoding_format": "float"}).encode()
    return HEAD.format(len(body)).encode() + body


async def connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    place = urlsplit(url)
    return await asyncio.open_connection(place.hostname, place.port)


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body of one response; IncompleteReadError with `partial` if it is truncated."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return int(head.split()[1]), await reader.readexactly(length)


async def test_a_thousand_connections_at_once(tmp_path):
    """Each receives the vector that its text has alone."""
    with running(tmp_path / "log") as (url, _):

        async def ask(number: int) -> list[float]:
            reader, writer = await connect(url)
            writer.write(request_bytes(f"text number {number % 50}"))
            status, body = await read_answer(reader)
            writer.close()
            await writer.wait_closed()
            assert status == 200
            return json.loads(body)["data"][0]["embedding"]

        alone = np.array([await ask(number) for number in range(50)])
        together = np.array(await asyncio.gather(*map(ask, range(1000))))
    cosines = (together * alone[np.arange(1000) % 50]).sum(1)
    assert cosines.min() > 0.9999


async def test_disconnected_clients_free_the_queue(tmp_path):
    """After 200 clients send large requests and disconnect, the queue is empty and a short request is answered."""
    with running(tmp_path / "log", "--cache-bytes", "0") as (url, _):
        writers = []
        for number in range(200):
            _, writer = await connect(url)
            writer.write(request_bytes(f"{number} leaving " * 100))
            writers.append(writer)
        for writer in writers:
            writer.transport.abort()
        async with httpx.AsyncClient(base_url=url, timeout=60) as client, asyncio.timeout(60):
            # A slow machine refuses it as overload until the server has noticed the disconnects.
            while (await client.post("/v1/embeddings", json={"input": "still here"})).status_code == 429:
                await asyncio.sleep(0.05)
            assert (await client.post("/v1/embeddings", json={"input": "still here"})).status_code == 200
            while "vectord_queue_texts 0.0" not in (await client.get("/metrics")).text:
                await asyncio.sleep(0.05)
