"""A closed load that leaves the CPU to the server: raw sockets, prepared bytes, no HTTP client.

A client library costs 0.3 ms for a request, which the server needs on two cores. This one writes prepared bytes and
reads only a response's status line and length: 8 to 30 us for a request (`client_us` in every Round). `vectord bench`
uses the client library. Runs in the parent process, on its own event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import uvloop

from bench.corpus import Corpus
from vectord.config import DEFAULT_MODEL

HOST = "127.0.0.1"
PATIENCE_S = 120.0


class BadAnswer(Exception):
    """A response that does not count as completed work."""


@dataclass(frozen=True, slots=True)
class Request:
    """The bytes of a request, and its texts and tokens."""

    payload: bytes
    texts: int
    tokens: int


EMPTY = Request(f"GET /health/live HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode(), texts=0, tokens=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The figures of one phase of steady load."""

    requests: int
    texts: int
    tokens: int
    elapsed_s: float
    latencies_ms: Sequence[float] = field(repr=False)
    client_us: float  # CPU time of the load generator for a request

    @property
    def requests_per_s(self) -> float:
        return self.requests / self.elapsed_s

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.elapsed_s

    def percentile_ms(self, percent: float) -> float:
        return float(np.percentile(self.latencies_ms, percent))


def embedding_requests(corpus: Corpus, texts_per_request: int) -> list[Request]:
    """OpenAI embedding requests over the corpus, in its order; every measured server accepts them."""
    requests = []
    for start in range(0, len(corpus.texts) - texts_per_request + 1, texts_per_request):
        part = slice(start, start + texts_per_request)
        texts = corpus.texts[part]
        payload = embedding_request(texts if texts_per_request > 1 else texts[0])
        requests.append(Request(payload, texts_per_request, sum(map(len, corpus.ids[part]))))
    return requests


def embedding_request(texts: str | Sequence[str]) -> bytes:
    return request("/v1/embeddings", {"model": DEFAULT_MODEL, "input": texts})


def request(path: str, fields: Mapping[str, Any]) -> bytes:
    """A POST request with a JSON body."""
    body = json.dumps(fields).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def run_load(port: int, requests: Sequence[Request], connections: int, limit_s: float = 60.0) -> Round:
    """Keep `connections` busy until all requests are answered, or for `limit_s`.

    The first request of each connection is not counted, and all connections stay busy until the last counted response,
    so that neither the start nor the end distorts the figures. Requests then in flight are awaited, so that they do not
    slow the next round. Raises BadAnswer on any status but 200, on a closed connection, and after a long silence.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_load(port, requests, connections, limit_s))


async def _load(port: int, requests: Sequence[Request], connections: int, limit_s: float) -> Round:
    loop = asyncio.get_running_loop()
    tally = Tally(warm=connections, counted=len(requests))
    source = itertools.cycle(requests)
    opened = [await loop.create_connection(lambda: Connection(source, tally), HOST, port) for _ in range(connections)]
    try:
        async with asyncio.timeout(PATIENCE_S):
            await tally.warmed
        await asyncio.wait([tally.done], timeout=limit_s)
        measured = tally.round()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(connection.closed for _, connection in opened))
    except TimeoutError:
        raise BadAnswer(f"no answer for {PATIENCE_S:g} s") from None
    finally:
        for transport, _ in opened:
            transport.abort()
    return measured


class Tally:
    """Counts responses from the end of the warm-up to the last counted one. On the load generator's loop."""

    def __init__(self, *, warm: int, counted: int) -> None:
        loop = asyncio.get_running_loop()
        self.warm = warm
        self.counted = counted
        self.warmed: asyncio.Future[None] = loop.create_future()
        self.done: asyncio.Future[None] = loop.create_future()
        self.answered: list[tuple[Request, float]] = []  # with its latency in ms
        self.started_s = self.finished_s = time.perf_counter()
        self.cpu_started_s = time.process_time()

    def add(self, request: Request, latency_s: float) -> None:
        if self.done.done():
            return
        if self.warm:
            self.warm -= 1
            if not self.warm:
                self.started_s = time.perf_counter()
                self.cpu_started_s = time.process_time()
                _resolve(self.warmed)
            return
        self.answered.append((request, latency_s * 1e3))
        self.finished_s = time.perf_counter()
        if len(self.answered) == self.counted:
            _resolve(self.done)

    def fail(self, error: BadAnswer) -> None:
        _resolve(self.warmed)
        if not self.done.done():
            self.done.set_exception(error)

    def round(self) -> Round:
        """The figures; counting stops here. Raises BadAnswer after a bad response."""
        cpu_s = time.process_time() - self.cpu_started_s
        _resolve(self.done)
        self.done.result()
        requests = [request for request, _ in self.answered]
        if not requests:
            raise BadAnswer("no request was answered in time")
        return Round(
            requests=len(requests),
            texts=sum(request.texts for request in requests),
            tokens=sum(request.tokens for request in requests),
            elapsed_s=self.finished_s - self.started_s,
            latencies_ms=[latency_ms for _, latency_ms in self.answered],
            client_us=cpu_s / len(requests) * 1e6,
        )


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Connection(asyncio.Protocol):
    """One keep-alive connection: sends a request, awaits the whole response and sends the next, until counting ends."""

    def __init__(self, source: Iterator[Request], tally: Tally) -> None:
        self.source = source
        self.tally = tally
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.request: Request
        self.sent_s = 0.0
        self.missing_bytes = -1  # of the response's body; -1 before its head was read
        self.head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.WriteTransport, transport)  # uvloop's does not inherit from it
        self.send()

    def send(self) -> None:
        self.request = next(self.source)
        self.head = b""
        self.missing_bytes = -1
        self.sent_s = time.perf_counter()
        self.transport.write(self.request.payload)

    def data_received(self, data: bytes) -> None:
        if self.missing_bytes < 0:
            self.head += data
            end = self.head.find(b"\r\n\r\n")
            if end < 0:
                return
            try:
                self.missing_bytes = content_length(self.head[:end])
            except BadAnswer as error:
                self.tally.fail(error)
                return
            data = self.head[end + 4 :]
        self.missing_bytes -= len(data)
        if self.missing_bytes == 0:
            self.answered()

    def answered(self) -> None:
        self.tally.add(self.request, time.perf_counter() - self.sent_s)
        if self.tally.done.done():
            self.transport.close()
        else:
            self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        self.tally.fail(BadAnswer("the server closed a connection"))  # irrelevant after counting
        _resolve(self.closed)


def content_length(head: bytes) -> int:
    """Bytes in the body of a response with status 200. Raises BadAnswer for another status, or without a length."""
    status, _, fields = head.partition(b"\r\n")
    if status[9:12] != b"200":
        raise BadAnswer(f"status {status[9:].decode(errors='replace')}")
    for line in fields.split(b"\r\n"):
        if line[:15].lower() == b"content-length:":
            return int(line[15:])
    raise BadAnswer("an answer without Content-Length")
