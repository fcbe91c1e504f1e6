"""`put_load`: so many requests, so many at a time, over raw sockets. On an event loop of its own.

A client library costs some 0.3 ms a request, which the server beside it lacks. Here requests are bytes made beforehand,
and of an answer only its status and its end are looked at (httptools, chunks and lengths alike).
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

import httptools

from vectord.tools.bench.figures import Figures, figures

NO_ANSWER = "no answer within the timeout"
CLOSED = "the connection was closed"


@dataclass(frozen=True, slots=True)
class Target:
    host: str
    port: int
    path: str
    authority: str
    tls: ssl.SSLContext | None
    token: str | None

    def request(self, body: object) -> bytes:
        content = json.dumps(body).encode()
        key = f"Authorization: Bearer {self.token}\r\n" if self.token is not None else ""
        head = (
            f"POST {self.path} HTTP/1.1\r\nHost: {self.authority}\r\nUser-Agent: vectord-bench\r\n{key}"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        return head.encode("latin-1") + content


def target(url: str, path: str, token: str | None) -> Target:
    """url: of asking.check_url."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or (443 if tls else 80)
    return Target(parts.hostname, port, parts.path.rstrip("/") + path, parts.netloc, tls, token)


@dataclass(slots=True)
class Tally:
    """What came so far. `left`: requests that nobody has begun yet."""

    left: int
    latencies_ms: list[float] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)

    def take(self) -> bool:
        """Whether there is one more to send."""
        if self.left == 0:
            return False
        self.left -= 1
        return True

    def failed(self, why: str) -> None:
        self.failures[why] = self.failures.get(why, 0) + 1


def put_load(
    scenario: str,
    at: Target,
    bodies: Sequence[object],
    *,
    requests: int,
    concurrency: int,
    warmup: int,
    timeout_s: float,
    units_per_request: int,
    report: Callable[[int], None] = lambda done: None,
) -> Figures:
    """The bodies in turn, until as many requests as asked for are answered or failed; `warmup` before, uncounted.

    report: how many are done, a few times a second.
    """
    payloads = [at.request(body) for body in bodies]
    factory = None
    if sys.platform != "win32":
        import uvloop  # noqa: PLC0415 - not to be had on Windows

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        if warmup:
            runner.run(_round(at, payloads, Tally(warmup), concurrency, timeout_s, lambda done: None))
        tally = Tally(requests)
        began_s, cpu_began_s = time.perf_counter(), time.process_time()
        runner.run(_round(at, payloads, tally, concurrency, timeout_s, report))
        wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_began_s
    return figures(
        scenario,
        latencies_ms=tally.latencies_ms,
        failures=tally.failures,
        concurrency=concurrency,
        units_per_request=units_per_request,
        wall_s=wall_s,
        cpu_s=cpu_s,
    )


async def _round(
    at: Target,
    payloads: Sequence[bytes],
    tally: Tally,
    concurrency: int,
    timeout_s: float,
    report: Callable[[int], None],
) -> None:
    turn = _endless(payloads)
    workers = [asyncio.create_task(_worker(at, turn, tally, timeout_s)) for _ in range(min(concurrency, tally.left))]
    watch = asyncio.create_task(_watch(tally, report))
    try:
        await asyncio.gather(*workers)
    finally:
        watch.cancel()
        for worker in workers:
            worker.cancel()


def _endless(payloads: Sequence[bytes]) -> Iterator[bytes]:
    while True:
        yield from payloads


async def _watch(tally: Tally, report: Callable[[int], None]) -> None:
    while True:
        await asyncio.sleep(0.2)
        report(len(tally.latencies_ms) + sum(tally.failures.values()))


async def _worker(at: Target, turn: Iterator[bytes], tally: Tally, timeout_s: float) -> None:
    """One request after another over one connection, opened anew when it was closed."""
    connection: Connection | None = None
    while tally.take():
        began_s = time.perf_counter()
        try:
            async with asyncio.timeout(timeout_s or None):
                if connection is None or not connection.is_open:
                    connection = await _connect(at)
                status = await connection.exchange(next(turn))
        except TimeoutError:
            tally.failed(NO_ANSWER)
        except OSError as error:
            tally.failed(f"{type(error).__name__}: {error.strerror or CLOSED}"[:120])
            await asyncio.sleep(0.01)  # a server that is gone is not asked a million times
        else:
            if status == 200:
                tally.latencies_ms.append((time.perf_counter() - began_s) * 1e3)
                continue
            tally.failed(f"status {status}")
            if connection is not None and connection.is_open:
                continue
        if connection is not None:
            connection.close()
            connection = None
    if connection is not None:
        connection.close()


async def _connect(at: Target) -> Connection:
    loop = asyncio.get_running_loop()
    name = at.host if at.tls is not None else None
    _, connection = await loop.create_connection(Connection, at.host, at.port, ssl=at.tls, server_hostname=name)
    return connection


class Connection(asyncio.Protocol):
    """One exchange at a time."""

    def __init__(self) -> None:
        self.is_open = False
        self._answered: asyncio.Future[int] | None = None
        self._parser: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is one by its methods only
        self.is_open = True

    async def exchange(self, payload: bytes) -> int:
        """The status, once the answer's last byte is here. Raises OSError where the connection ends before."""
        self._parser = httptools.HttpResponseParser(self)
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(payload)
        return await self._answered

    def close(self) -> None:
        self.is_open = False
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            if self._parser is None:
                raise httptools.HttpParserError("bytes that nobody asked for")
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._end(OSError(0, "what came is not HTTP"))
            self.close()

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if not self._parser.should_keep_alive():
            self.close()
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(status)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._end(OSError(0, CLOSED))

    def _end(self, error: OSError) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(error)
