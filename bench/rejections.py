"""CPU time of a rejected request: a server whose engine has no free place, in a process of its own.

The whole process counts, system calls included. The load generator keeps a few connections open and sends a request
after each response, so the figure has no handshakes. `python -m bench.rejections` runs the server.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from bench.arrivals import Connection, connect
from bench.child import REPOSITORY
from bench.exchange import Answer
from bench.http_load import HOST, Request, embedding_request
from bench.report import Row
from bench.wire import MODEL
from vectord.config import ServerConfig, TelemetryConfig
from vectord.engine.events import RequestEnded
from vectord.engine.queue.admission import Admission
from vectord.errors import Overloaded
from vectord.observability import logs
from vectord.observability.metrics import Metrics
from vectord.products.common.dialect import load_dialects
from vectord.schema import ANYONE, Caller, Limits, ModelList, Operation, Result
from vectord.schema import Request as EngineRequest
from vectord.server.http.app import create_app
from vectord.server.http.listener import bind
from vectord.server.http.run import serve

CONNECTIONS = 16
BURST_S = 0.25  # the best of many short bursts counts: on a shared machine, other work slows most of them
BURSTS = 12  # of each kind, in turns
TEXT = "what is the boiling point of water at high altitude"


@dataclass(frozen=True, slots=True)
class Rejections:
    what: str
    cpu_us: float  # of the server's process for a rejection, in the best burst


def measure(rounds: int) -> list[Rejections]:
    """For each kind of request, after the same for uvicorn with an app that answers 429 at once."""
    costs: dict[str, list[float]] = {}
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, _server("bare") as bare, _server() as server:
        for _ in range(BURSTS * rounds):
            for what, (process, port), payload in (
                (BARE, bare, KINDS[0][1]),
                *((what, server, payload) for what, payload in KINDS),
            ):
                before_s = _cpu_s(process.pid)
                count = runner.run(_load(port, payload, BURST_S))
                costs.setdefault(what, []).append((_cpu_s(process.pid) - before_s) / count)
    return [Rejections(what, min(each) * 1e6) for what, each in costs.items()]


def rows(found: Sequence[Rejections]) -> list[Row]:
    return [Row(what=f"CPU time of a rejection: {one.what}", value=f"{one.cpu_us:.0f} us") for one in found]


def _own_request(text: str) -> bytes:
    body = json.dumps({"inputs": text}).encode()
    return f"POST /vectord/embed HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


BARE = "uvicorn alone"
KINDS = (
    ("POST /v1/embeddings", embedding_request(TEXT)),
    ("POST /v1/embeddings, 32 kB", embedding_request([TEXT] * 600)),
    ("POST /vectord/embed", _own_request(TEXT)),
)


@contextmanager
def _server(*arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The process and its port."""
    command = [sys.executable, "-m", "bench.rejections", *arguments]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def _cpu_s(pid: int) -> float:
    """Of all threads, in user mode and in the kernel, to the nanosecond."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


async def _load(port: int, payload: bytes, seconds: float) -> int:
    """How many requests were rejected. Raises RuntimeError for any other answer."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + seconds
    request = Request(payload, 1, 1)
    statuses: list[int] = []
    resting = asyncio.Semaphore(0)

    def answered(connection: Connection, request: Request, answer: Answer) -> None:
        statuses.append(answer.status)
        if answer.status == 429 and loop.time() < until_s:
            connection.send(request)
        else:
            resting.release()

    connections = [Connection(answered) for _ in range(CONNECTIONS)]
    for connection in connections:
        await connect(connection, port)
        connection.send(request)
    for _ in connections:
        await resting.acquire()
    if set(statuses) != {429}:
        raise RuntimeError(f"statuses {sorted(set(statuses))}")
    for connection in connections:
        connection._answered = lambda *_: None
        connection.abort()
    return len(statuses)


class FullEngine:
    """An EngineClient whose only place is taken."""

    def __init__(self, metrics: Metrics) -> None:
        self._admission = Admission(1)
        self._admission.under_way = 1
        self._metrics = metrics

    async def answer(self, request: EngineRequest, caller: Caller) -> Result:
        raise AssertionError("every request is refused before")

    async def check_busy(self, operation: Operation, caller: Caller) -> None:
        try:
            self._admission.check(caller.client)
        except Overloaded as busy:
            self._metrics.observe(RequestEnded(caller=caller, operation=operation, error=type(busy).__name__))
            raise

    def readiness(self) -> dict[str, str]:
        return {MODEL.name: "ready"}

    def models(self, caller: Caller = ANYONE) -> ModelList:
        limits = Limits(
            max_inputs_per_request=4096,
            max_batch_tokens=16_384,
            max_batch_texts=None,
            max_concurrent_requests=1,
            tokenization_workers=1,
            truncates=None,
        )
        return ModelList(models=(MODEL,), limits=limits)

    async def drain(self) -> None:
        pass


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI app that does nothing else."""
    await send({"type": "http.response.start", "status": 429, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"{}"})


def main() -> None:
    """Serve, and print the port."""
    listener = bind(HOST, 0)
    if sys.argv[1:] == ["bare"]:
        listener.listen()
        print(listener.getsockname()[1], flush=True)
        uvicorn.Server(uvicorn.Config(bare, lifespan="off", log_config=None, access_log=False)).run([listener])
        return
    logs.configure(TelemetryConfig())
    metrics = Metrics("0")
    config = ServerConfig()
    app = create_app(FullEngine(metrics), load_dialects(config.dialects), config, metrics)
    serve(app, config, listener=listener, on_listening=lambda url: print(url.rpartition(":")[2], flush=True))


if __name__ == "__main__":
    main()
