"""The server under attack, raw connections to it, and the results of one attack."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import psutil

MAX_FAULTS = 5  # kept per attack
PATIENCE_S = 30.0  # for the last responses after the end of an attack
REPLY_BYTES = 256 * 2**20

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    head: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class Target:
    url: str
    keys: tuple[str, ...] = ()
    witness_key: str = ""
    grpc_port: int | None = None
    chance: random.Random = field(default_factory=lambda: random.Random(0), repr=False)

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or "127.0.0.1"

    @property
    def port(self) -> int:
        parts = urlsplit(self.url)
        return parts.port or (443 if parts.scheme == "https" else 80)

    @property
    def is_tls(self) -> bool:
        return urlsplit(self.url).scheme == "https"

    @property
    def source_address(self) -> tuple[str, int] | None:
        """The source address of attacks, so that the server treats the witness as another client. None: the default."""
        return ("127.0.0.2", 0) if self.host == "127.0.0.1" and sys.platform == "linux" else None

    def post(
        self, path: str, body: bytes, *, key: int = 0, headers: str = "", content_type: str = "application/json"
    ) -> bytes:
        """The bytes of a POST request. key: index into `keys`."""
        return (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {content_type}\r\n{self.authorization(key)}{headers}"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode() + body

    def get(self, path: str, headers: str = "") -> bytes:
        return f"GET {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode()

    def authorization(self, key: int = 0) -> str:
        return f"Authorization: Bearer {self.keys[key]}\r\n" if self.keys else ""

    @contextlib.asynccontextmanager
    async def connection(self, *, tls: bool | None = None, port: int | None = None) -> AsyncIterator[Streams]:
        """A raw connection. tls: None: as in the URL. port: None: the URL's. Raises OSError, also after a timeout."""
        context = insecure_context() if (self.is_tls if tls is None else tls) else None
        if context is not None and port is not None:
            context.set_alpn_protocols(["h2"])  # gRPC requires it
        async with asyncio.timeout(20):
            reader, writer = await asyncio.open_connection(
                self.host, port or self.port, ssl=context, limit=REPLY_BYTES, local_addr=self.source_address
            )
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def ask(self, request: bytes, timeout_s: float = 60.0) -> Reply:
        """The response to a request on a new connection. Raises OSError or EOFError without one."""
        async with self.connection() as (reader, writer), asyncio.timeout(timeout_s):
            writer.write(request)
            return await read_reply(reader)

    def processes(self) -> list[psutil.Process]:
        """The server's process and its children. Raises LookupError if it is not on this machine."""
        for listening in psutil.net_connections("inet"):
            if listening.status == psutil.CONN_LISTEN and listening.laddr.port == self.port and listening.pid:
                process = psutil.Process(listening.pid)
                return [process, *process.children(recursive=True)]
        raise LookupError(f"no process of this machine listens on port {self.port}")


def insecure_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # without reading the system's certificates, which takes 50 ms
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def read_reply(reader: asyncio.StreamReader) -> Reply:
    """Read a response with Content-Length or chunks. Raises EOFError if it is incomplete or not HTTP."""
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 "):
        raise EOFError(f"no response: {head[:40]!r}")
    lower = head.lower()
    if b"transfer-encoding: chunked" in lower:
        body = b""
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readuntil(b"\r\n")
    else:
        length = lower.partition(b"\r\ncontent-length:")[2].split(b"\r\n")[0]
        body = await reader.readexactly(int(length or b"0"))
    return Reply(int(head.split()[1]), head, body)


@dataclass(slots=True)
class Attempt:
    """The limits of one attack, and its results."""

    seconds: float
    connections: int
    tried: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    skipped: str = ""  # why the attack does not apply
    began_s: float = field(default_factory=time.monotonic)

    def goes_on(self) -> bool:
        return time.monotonic() < self.began_s + self.seconds

    def left_s(self) -> float:
        return max(0.0, self.began_s + self.seconds - time.monotonic())

    def saw(self, outcome: object) -> None:
        self.tried += 1
        self.outcomes[str(outcome)] += 1

    def fault(self, what: str) -> None:
        if len(self.faults) < MAX_FAULTS and what not in self.faults:
            self.faults.append(what)

    async def crowd(self, one: Callable[[int], Awaitable[None]], connections: int | None = None) -> None:
        """Repeat `one(number)` for each connection number until the time is over. Counts broken connections."""

        async def repeat(number: int) -> None:
            while True:
                try:
                    await one(number)
                except (OSError, EOFError, asyncio.LimitOverrunError) as end:
                    self.saw(type(end).__name__)
                    await asyncio.sleep(0.02)
                if not self.goes_on():
                    return

        tasks = [asyncio.create_task(repeat(number)) for number in range(connections or self.connections)]
        _, pending = await asyncio.wait(tasks, timeout=self.left_s() + PATIENCE_S)
        for task in pending:
            self.saw("unanswered")
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
