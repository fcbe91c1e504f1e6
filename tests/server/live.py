"""A real server on a real socket in the test's loop, and a client that shows every byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.server.fakes import EMBED, FakeEngine

from vectord.compose import open_batches
from vectord.config import ServerConfig
from vectord.engine.client import EngineClient
from vectord.observability.metrics import Metrics
from vectord.observability.tracing import Tracing
from vectord.products.common.dialect import Dialect
from vectord.server.http.app import create_app
from vectord.server.http.run import Server, bind, url_of

PATIENCE_S = 20.0


@dataclass
class Live:
    server: Server
    port: int
    stopped: asyncio.Task[None]

    def stop(self) -> None:
        """The effect of a signal."""
        self.server.shutdown.begin()


@asynccontextmanager
async def live(
    engine: EngineClient | None = None,
    dialects: Sequence[Dialect] = (EMBED,),
    metrics: Metrics | None = None,
    tracer: Tracing | None = None,
    **settings: Any,
) -> AsyncIterator[Live]:
    """A server of `engine`, stopped at the end. settings: fields of ServerConfig.

    Raises TimeoutError after PATIENCE_S, so that a broken server fails the test.
    """
    config = ServerConfig(**{"port": 0, "shutdown_timeout_secs": 5.0, **settings})
    app = create_app(engine or FakeEngine(), dialects, config, metrics, tracer=tracer, batches=open_batches(config))
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    listening = asyncio.Event()
    server = Server(app, config, lambda url: listening.set())
    stopped = asyncio.create_task(server.serve(listener, url_of(listener)))
    await listening.wait()
    running = Live(server, port, stopped)
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield running
    finally:
        running.stop()
        async with asyncio.timeout(PATIENCE_S):
            await stopped


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """One connection with hand-written HTTP/1.1."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, *parts: bytes) -> None:
        self.writer.write(b"".join(parts))

    async def reply(self, head_only: bool = False) -> Reply:
        """The next complete response. Raises IncompleteReadError if the server closes before its end."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.rstrip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        length = 0 if head_only else int(headers.get("content-length", 0))
        return Reply(int(first.split()[1]), headers, await self.reader.readexactly(length))

    async def closed(self) -> bool:
        """Waits until the server closes; False if it sends another byte."""
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.writer.close()


@asynccontextmanager
async def connected(running: Live) -> AsyncIterator[Client]:
    client = Client(*await asyncio.open_connection("127.0.0.1", running.port))
    try:
        yield client
    finally:
        client.close()


def post(body: bytes | object, path: str = "/v1/embed", headers: Mapping[str, str] | None = None) -> bytes:
    """A request with its Content-Length, unless `headers` say otherwise."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    shown = {"host": "test", "content-length": str(len(content)), **(headers or {})}
    return f"POST {path} HTTP/1.1\r\n".encode() + _lines(shown) + b"\r\n" + content


def get(path: str, headers: Mapping[str, str] | None = None, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\n".encode() + _lines({"host": "test", **(headers or {})}) + b"\r\n"


FORM_TYPE = {"content-type": "multipart/form-data; boundary=b"}


def form_of(*parts: tuple[bytes, bytes]) -> bytes:
    """A body of FORM_TYPE. parts: the parameters of each part, such as `name="purpose"`, and its content."""
    return b"".join(b"--b\r\ncontent-disposition: form-data; %b\r\n\r\n%b\r\n" % part for part in parts) + b"--b--\r\n"


def file_form(content: bytes) -> bytes:
    """An upload to /v1/files."""
    return form_of((b'name="purpose"', b"batch"), (b'name="file"; filename="a"', content))


def _lines(headers: Mapping[str, str]) -> bytes:
    return b"".join(f"{name}: {value}\r\n".encode("latin-1") for name, value in headers.items() if value != "")


async def until(it_holds: Callable[[], bool]) -> None:
    """Waits for a state of the server that no event announces."""
    turns = 0
    async with asyncio.timeout(PATIENCE_S):
        while not it_holds():
            turns += 1
            await asyncio.sleep(0 if turns < 1000 else 0.001)  # leaves the interpreter to threads that work


async def ask(running: Live, request: bytes) -> Reply:
    """One request on a new connection."""
    async with connected(running) as client:
        client.send(request)
        return await client.reply(head_only=request.startswith(b"HEAD"))
