"""`vectord bench`: the requests of its scenarios, in the form that the server accepts, and the load generator.

`put_load` sends concurrent requests on an event loop of its own. It writes bytes to raw sockets and reads only the
status and the end of each response, since the server may need the cores that a client library would use.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, repeat
from typing import Any, cast
from urllib.parse import urlsplit

import httptools
import numpy as np

from vectord.tools.probe import EMBED_FORMS, ProbedServer, find_embed_route, find_rerank_route

SCENARIOS = ("embed_dense", "embed_full", "rerank")

_SUBJECTS = ("The committee", "A small bird", "The new engine", "Her grandmother", "The river", "A quiet village")
_VERBS = ("describes", "crosses", "repairs", "remembers", "measures", "follows")
_OBJECTS = ("an old bridge in the rain", "the results of the last survey", "a letter that was never sent")


@dataclass(frozen=True, slots=True)
class Scenario:
    path: str
    form: str  # the API of the requests
    bodies: Iterator[dict[str, Any]]  # endless


class Unsupported(Exception):
    """The server has no route for a scenario. The message names the routes that were tried."""


def scenario(server: ProbedServer, name: str, *, model: str | None, batch_size: int, repeated: bool) -> Scenario:
    """name: one of SCENARIOS. repeated: one body for all requests; else all texts are new. Raises Unsupported."""
    numbers = count(secrets.randbelow(8 * 10**7) + 10**7)  # of 8 digits
    batches = ([_sentence(next(numbers)) for _ in range(batch_size)] for _ in repeat(None))
    bodies: Iterator[dict[str, Any]]
    if name == "rerank":
        reranks = find_rerank_route(server, model)
        if reranks is None:
            raise Unsupported("no route returns scores")
        form = reranks.form
        queries = (f"Why does report number {number} matter?" for number in numbers)
        bodies = map(reranks.body, batches, queries)
    elif name == "embed_full":
        form = next(form for form in EMBED_FORMS if form.path == "/embeddings/")
        kinds = {"return_dense": True, "return_sparse": True, "return_colbert": True}
        bodies = ({"sentences": texts, **kinds} for texts in batches)
        reply = server.post(form.path, next(bodies))
        if reply.status != 200:
            raise Unsupported(f"POST {form.path} with dense, sparse and ColBERT vectors: {reply.summary()}")
    else:
        embeds = find_embed_route(server, model)
        if embeds is None:
            raise Unsupported("no route returns vectors")
        form = embeds.form
        bodies = map(embeds.body, batches)
    return Scenario(form.path, form.name, repeat(next(bodies)) if repeated else bodies)


def _sentence(number: int) -> str:
    """15 words, which no cache holds: the first number of a benchmark is random."""
    subject, verb, what = _SUBJECTS[number % 6], _VERBS[number // 6 % 6], _OBJECTS[number // 36 % 3]
    return f"{subject} {verb} {what}, and report number {number} says why it matters."


# --- load -----------------------------------------------------------------------------------------------------


class LoadTarget:
    """A route of a server, and the headers of its requests. url: from probe.check_url."""

    def __init__(self, url: str, path: str, token: str | None, tls: ssl.SSLContext) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self.host = parts.hostname
        self.tls = tls if parts.scheme == "https" else None
        self.port = parts.port or (443 if self.tls else 80)
        key = "" if token is None else f"Authorization: Bearer {token}\r\n"
        self._head = (
            f"POST {parts.path.rstrip('/')}{path} HTTP/1.1\r\nHost: {parts.netloc}\r\nUser-Agent: vectord-bench\r\n"
            f"{key}Content-Type: application/json\r\n"
        )

    def request(self, body: object) -> bytes:
        content = json.dumps(body).encode()
        return f"{self._head}Content-Length: {len(content)}\r\n\r\n".encode("latin-1") + content


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Counts and latencies of one scenario. Rates and latencies are of successful requests; None: there are none."""

    scenario: str
    requests: int
    ok: int
    failed: int
    concurrency: int
    wall_s: float
    requests_per_s: float
    units_per_s: float  # texts or passages
    avg_ms: float | None
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    min_ms: float | None
    max_ms: float | None
    client_busy: float  # CPU time of the load generator by wall time; near 1, it is the bottleneck
    failures: Mapping[str, int] = field(default_factory=dict)  # how often each failure occurred


@dataclass(slots=True)
class Tally:
    """The requests to send, and the results of those that have ended."""

    remaining: int
    latencies_ms: list[float] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)

    def take(self) -> bool:
        """Reserve one request; False if none is left."""
        if self.remaining == 0:
            return False
        self.remaining -= 1
        return True

    def fail(self, why: str) -> None:
        self.failures[why] = self.failures.get(why, 0) + 1

    def figures(
        self, scenario: str, *, concurrency: int, units_per_request: int, wall_s: float, cpu_s: float
    ) -> Figures:
        ok, failed = len(self.latencies_ms), sum(self.failures.values())
        wall_s = max(wall_s, 1e-9)
        times: dict[str, float | None] = dict.fromkeys(("avg_ms", "p50_ms", "p95_ms", "p99_ms", "min_ms", "max_ms"))
        if ok:
            percentiles = np.percentile(self.latencies_ms, (50, 95, 99, 0, 100))
            rounded = (round(float(ms), 3) for ms in (np.mean(self.latencies_ms), *percentiles))
            times = dict(zip(times, rounded, strict=True))
        return Figures(
            scenario=scenario,
            requests=ok + failed,
            ok=ok,
            failed=failed,
            concurrency=concurrency,
            wall_s=round(wall_s, 4),
            requests_per_s=round(ok / wall_s, 2),
            units_per_s=round(ok * units_per_request / wall_s, 2),
            **times,
            client_busy=round(min(cpu_s / wall_s, 1.0), 3),
            failures=self.failures,
        )


def put_load(
    scenario: str,
    at: LoadTarget,
    bodies: Iterator[object],
    *,
    requests: int,
    concurrency: int,
    warmup: int,
    timeout_s: float,
    units_per_request: int,
    report: Callable[[int], None] = lambda done: None,
) -> Figures:
    """Send `requests` requests, each with the next body, after `warmup` uncounted ones.

    bodies: at least warmup + requests. timeout_s: for one request; 0: none. report: receives the number of finished
    requests, five times a second.
    """
    payloads = map(at.request, bodies)
    factory = None
    if sys.platform != "win32":
        import uvloop  # noqa: PLC0415 - does not exist for Windows

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        if warmup:
            runner.run(_run(at, payloads, Tally(warmup), concurrency, timeout_s, lambda done: None))
        tally = Tally(requests)
        began_s, cpu_began_s = time.perf_counter(), time.process_time()
        runner.run(_run(at, payloads, tally, concurrency, timeout_s, report))
        wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_began_s
    return tally.figures(
        scenario,
        concurrency=concurrency,
        units_per_request=units_per_request,
        wall_s=wall_s,
        cpu_s=cpu_s,
    )


async def _run(
    at: LoadTarget,
    payloads: Iterator[bytes],
    tally: Tally,
    concurrency: int,
    timeout_s: float,
    report: Callable[[int], None],
) -> None:
    async def watch() -> None:
        while True:
            await asyncio.sleep(0.2)
            report(len(tally.latencies_ms) + sum(tally.failures.values()))

    workers = [
        asyncio.create_task(_worker(at, payloads, tally, timeout_s)) for _ in range(min(concurrency, tally.remaining))
    ]
    watcher = asyncio.create_task(watch())
    try:
        await asyncio.gather(*workers)
    finally:
        for task in (watcher, *workers):
            task.cancel()


async def _worker(at: LoadTarget, payloads: Iterator[bytes], tally: Tally, timeout_s: float) -> None:
    """Send one request after another on one connection; reconnect after a failure."""
    loop = asyncio.get_running_loop()
    connection: _ClientConnection | None = None
    while tally.take():
        began_s = time.perf_counter()
        try:
            async with asyncio.timeout(timeout_s or None):
                if connection is None or not connection.is_open:
                    name = at.host if at.tls is not None else None
                    _, connection = await loop.create_connection(
                        _ClientConnection, at.host, at.port, ssl=at.tls, server_hostname=name
                    )
                status = await connection.exchange(next(payloads))
        except TimeoutError:
            tally.fail("no response within the timeout")
        except OSError as error:
            tally.fail(error.strerror or "connection closed")
            await asyncio.sleep(0.01)  # do not reconnect in a busy loop
        else:
            if status == 200:
                tally.latencies_ms.append((time.perf_counter() - began_s) * 1e3)
            else:
                tally.fail(f"status {status}")
            continue
        if connection is not None:
            connection.close()
    if connection is not None:
        connection.close()


class _ClientConnection(asyncio.Protocol):
    """One request and response at a time."""

    def __init__(self) -> None:
        self.is_open = False
        self._status: asyncio.Future[int] | None = None
        self._parser: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's does not inherit from it
        self.is_open = True

    async def exchange(self, payload: bytes) -> int:
        """The status, after the response's last byte. Raises OSError if the connection ends before."""
        self._parser = httptools.HttpResponseParser(self)
        self._status = asyncio.get_running_loop().create_future()
        self._transport.write(payload)
        return await self._status

    def close(self) -> None:
        self.is_open = False
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            if self._parser is None:
                raise httptools.HttpParserError("data before the first request")
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._fail("the response is not HTTP")
            self.close()

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive():
            self.close()
        if self._status is not None and not self._status.done():
            self._status.set_result(self._parser.get_status_code())

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._fail("connection closed")

    def _fail(self, why: str) -> None:
        if self._status is not None and not self._status.done():
            self._status.set_exception(OSError(0, why))
