"""The effect of a bulk job on single requests, and of single requests on the job, and the effect of floods.

Phases on one server: single requests only, the job only, both at once, and single requests during a flood: many
requests in the interactive lane by one other client, and by 64, each with an address of its own. The job is a stream
of requests of many texts in the bulk lane, a few at a time, as an indexer sends them; single requests follow one
another.

In a flood, a short text waits for two batches at most, and its own: the time of its response is also given in batches,
of the mean time that /metrics shows for the flood's forward passes. It includes HTTP, which the promise does not.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import uvloop

from bench.corpus import Corpus
from bench.exchange import Connection
from bench.http_load import BadAnswer, Request, Round, embedding_requests, run_load
from bench.report import Row, at_least, at_most, load_row
from bench.server_process import Server
from bench.subject import Subject

TEXTS_A_REQUEST = 256
JOB_CONNECTIONS = 4
PATIENCE_S = 120.0
ALONE_S = 30.0  # of single requests only
PAUSE_S = 0.2  # between a response and the next request, as a person who searches
FLOODERS = (1, 64)  # clients
FLOOD_CONNECTIONS = 64
FLOOD_TEXTS = 16  # of a request
SHORT_TOKENS = 64  # a sixteenth of a batch on a CPU: the promise is for clients with at most as many in the queue
FLOOD_S = 20.0
MOST_BATCHES = 3.0  # two of others, and its own
WARM_S = 5.0  # the second plan is still being compiled during the first responses
TOGETHER_S, TOGETHER_CONNECTIONS = 20.0, 32  # of each of two servers
OPTIONS = ("--max-queue-wait-s", "600")


@dataclass(slots=True)
class Fairness:
    alone_ms: list[float] = field(default_factory=list, repr=False)
    during_ms: list[float] = field(default_factory=list, repr=False)
    flood_ms: dict[int, list[float]] = field(default_factory=dict, repr=False)  # by the number of flooders
    flood_batch_ms: dict[int, float] = field(default_factory=dict)  # mean time of a forward pass
    job_texts: int = 0
    job_alone_s: float = 0.0
    job_during_s: float = 0.0
    job_tokens: int = 0


def fairness(server: Server, corpus: Corpus, texts: int) -> tuple[list[Row], list[Fairness]]:
    """server: started with OPTIONS and without a cache. texts: the job's texts."""
    found = Fairness()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_measure(server.port, corpus, texts, found))
    return rows(found), [found]


async def _measure(port: int, corpus: Corpus, texts: int, found: Fairness) -> None:
    questions = itertools.cycle(embedding_requests(corpus, 1))
    many = [as_bulk(one) for one in embedding_requests(corpus, TEXTS_A_REQUEST)]
    job = list(itertools.islice(itertools.cycle(many), max(1, texts // TEXTS_A_REQUEST)))
    found.job_texts, found.job_tokens = sum(one.texts for one in job), sum(one.tokens for one in job)
    await _ask(port, questions, _after(WARM_S), [])
    await _ask(port, questions, _after(ALONE_S), found.alone_ms)
    found.job_alone_s = await _run(port, job)
    over = asyncio.Event()
    asking = asyncio.create_task(_ask(port, questions, over, found.during_ms))
    found.job_during_s = await _run(port, job)
    over.set()
    await asking
    flood = itertools.cycle(embedding_requests(corpus, FLOOD_TEXTS))
    short = itertools.cycle([one for one in embedding_requests(corpus, 1) if one.tokens <= SHORT_TOKENS])
    for clients in FLOODERS:
        over = _after(FLOOD_S)
        latencies_ms = found.flood_ms.setdefault(clients, [])
        batches, seconds = await _forwards(port)
        flooding = [_flood(port, flood, over, f"127.0.1.{n % clients + 1}") for n in range(FLOOD_CONNECTIONS)]
        await asyncio.gather(_ask(port, short, over, latencies_ms), *flooding)
        all_batches, all_seconds = await _forwards(port)
        found.flood_batch_ms[clients] = (all_seconds - seconds) / (all_batches - batches) * 1e3


async def _flood(port: int, requests: Iterator[Request], over: asyncio.Event, address: str) -> None:
    connection = Connection(port, PATIENCE_S, address)
    while not over.is_set():
        await connection.ask(next(requests).payload)
    connection.close()


async def _forwards(port: int) -> tuple[float, float]:
    """The number of forward passes since the start, and their seconds."""
    connection = Connection(port, PATIENCE_S)
    page = (await connection.ask(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")).body.decode()
    connection.close()
    name = "vectord_forward_duration_seconds"
    values = dict(line.split(" ") for line in page.splitlines() if line.startswith(name))
    return float(values[f"{name}_count"]), float(values[f"{name}_sum"])


def as_bulk(one: Request) -> Request:
    return Request(one.payload.replace(b"\r\n\r\n", b"\r\nx-vectord-lane: bulk\r\n\r\n", 1), one.texts, one.tokens)


def _after(seconds: float) -> asyncio.Event:
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, over.set)
    return over


async def _ask(port: int, questions: Iterator[Request], over: asyncio.Event, latencies_ms: list[float]) -> None:
    connection = Connection(port, PATIENCE_S)
    while not over.is_set():
        answer = await connection.ask(next(questions).payload)
        if answer.status != 200:
            raise BadAnswer(f"a question was answered with {answer.status}")
        latencies_ms.append(answer.latency_s * 1e3)
        await asyncio.sleep(PAUSE_S)
    connection.close()


async def _run(port: int, job: Sequence[Request]) -> float:
    """Seconds until the job is complete."""
    waiting = iter(job)

    async def work() -> None:
        connection = Connection(port, PATIENCE_S)
        for one in waiting:
            answer = await connection.ask(one.payload)
            if answer.status != 200:
                raise BadAnswer(f"a part of the job was answered with {answer.status}")
        connection.close()

    began_s = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(JOB_CONNECTIONS)))
    return time.perf_counter() - began_s


def rows(found: Fairness) -> list[Row]:
    alone, during = np.array(found.alone_ms), np.array(found.during_ms)
    times = float(np.percentile(during, 99) / np.percentile(alone, 99))
    share = found.job_alone_s / found.job_during_s
    floods = [
        _row(
            f"short ones, during a flood by {clients} clients",
            np.array(latencies_ms),
            value=f"{np.median(latencies_ms) / np.median(alone):.1f} x at p50, {batches:.1f} batches at p99",
            **at_most(batches, MOST_BATCHES, " batches"),
        )
        for clients, latencies_ms in found.flood_ms.items()
        for batches in [float(np.percentile(latencies_ms, 99)) / found.flood_batch_ms[clients]]
    ]
    return [
        _row("single requests", alone),
        _row("the same, during the job", during, value=f"{times:.1f} x at p99", **at_most(times, 3.0, " x")),
        Row(
            what=f"a job of {found.job_texts} texts",
            value=f"{found.job_alone_s:.1f} s",
            tokens_per_s=found.job_tokens / found.job_alone_s,
        ),
        Row(
            what="the same, during single requests",
            value=f"{share:.2f} of its speed",
            tokens_per_s=found.job_tokens / found.job_during_s,
            **at_least(share, 0.9, ""),
        ),
        *floods,
    ]


def _row(what: str, latencies_ms: np.ndarray, **others: object) -> Row:
    return Row(
        what=what,
        p50_ms=float(np.percentile(latencies_ms, 50)),
        p99_ms=float(np.percentile(latencies_ms, 99)),
        **others,  # type: ignore[arg-type]
    )


def two_servers(subject: Subject) -> tuple[list[Row], list[Round]]:
    """One server alone, and two on one machine under the same load each."""
    requests = embedding_requests(subject.corpus, 1)

    def load(server: Server, seconds: float = TOGETHER_S) -> Round:
        return run_load(server.port, requests, TOGETHER_CONNECTIONS, seconds)

    with subject.start_server() as one, subject.start_server() as other, ThreadPoolExecutor(2) as clients:
        for server in (one, other):
            server.wait_until_answering()
            load(server, WARM_S)
        alone = load(one)
        together = list(clients.map(load, (one, other)))
    share = sum(each.tokens_per_s for each in together) / alone.tokens_per_s
    what = f"{TOGETHER_CONNECTIONS} connections x 1 text"
    return [
        load_row(f"one server, {what}", alone),
        *(load_row(f"each of two at once, {what}", each) for each in together),
        Row(what="both together, relative to one", value=f"{share:.2f}", **at_least(share, 0.95, "")),
    ], [alone, *together]
