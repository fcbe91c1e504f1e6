"""Five times the server's peak load for a while: its goodput, and the fate of refused requests.

First a closed loop finds the peak rate. Then requests arrive at random at a multiple of it, independently of responses,
as users send them. Each has a deadline in x-vectord-timeout-ms. Then the peak is measured again, and the mean counts:
a shared machine drifts by a tenth within minutes. The load generator runs on the server's CPUs; its share is reported
with the goodput.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np
import uvloop

from bench.arrivals import Arrivals, Connection, connect
from bench.corpus import Corpus
from bench.exchange import Answer
from bench.http_load import Request, embedding_requests
from bench.report import Row, at_least, at_most
from bench.server_process import Server

TIMES = 5.0
PEAK_CONNECTIONS = 64
PEAK_S = 15.0
PEAK_WARM_S = 10.0  # the second plan is still being compiled during the first responses
DEADLINE_S = 2.0
MAX_QUEUE_WAIT_S = 1.0  # of the server: half the deadline, so that accepted requests can finish
PATIENCE_S = 20.0
WARM_S = 3.0  # of the overload, while the queue fills
REFUSED_P99_MS = 50.0
REFUSALS = (429, 503)
OPTIONS = ("--max-queue-wait-s", str(MAX_QUEUE_WAIT_S), "--request-timeout-s", "0")


@dataclass(slots=True)
class Overloaded:
    offered_per_s: float
    peaks_tokens_per_s: tuple[float, ...] = ()  # before and after
    elapsed_s: float = 0.0
    good: int = 0  # answered within their deadline
    good_tokens: int = 0
    late: int = 0  # accepted, then answered late or with 504
    refused: int = 0
    unanswered: int = 0
    other: int = 0  # any other status: an error
    late_arrivals: int = 0  # that the load generator sent more than 50 ms late
    peak_client: float = 0.0  # CPUs used by the load generator, at the peak and in the overload
    client: float = 0.0
    processors: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    good_ms: list[float] = field(default_factory=list, repr=False)
    refused_ms: list[float] = field(default_factory=list, repr=False)


def overload(server: Server, corpus: Corpus, minutes: float) -> tuple[list[Row], list[Overloaded]]:
    """server: started with OPTIONS."""
    requests = embedding_requests(corpus, 1)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_peak(server.port, requests, PEAK_WARM_S))
        before = runner.run(_peak(server.port, requests, PEAK_S))
        found = Overloaded(offered_per_s=TIMES * before.requests_per_s)
        runner.run(_offer(server.port, [with_deadline(one) for one in requests], found, minutes * 60))
        after = runner.run(_peak(server.port, requests, PEAK_S))
    found.peaks_tokens_per_s = (before.tokens_per_s, after.tokens_per_s)
    found.peak_client = (before.client + after.client) / 2
    return rows(found), [found]


@dataclass(frozen=True, slots=True)
class Peak:
    requests_per_s: float
    tokens_per_s: float
    client: float  # CPUs


async def _peak(port: int, requests: Sequence[Request], seconds: float) -> Peak:
    """The rate of connections that send a request after each response."""
    loop = asyncio.get_running_loop()
    source = itertools.cycle(requests)
    good: list[Request] = []
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    resting: set[Connection] = set()
    all_rest = asyncio.Event()

    def answered(connection: Connection, request: Request, answer: Answer) -> None:
        if answer.status == 0 or time.perf_counter() - began_s >= seconds:
            resting.add(connection)
            if len(resting) == PEAK_CONNECTIONS:
                all_rest.set()
        elif answer.status == 200:
            good.append(request)
            connection.send(next(source))
        else:  # a busy machine may be too slow for all connections
            loop.call_later(0.05, connection.send, next(source))

    for _ in range(PEAK_CONNECTIONS):
        connection = Connection(answered)
        await connect(connection, port)
        connection.send(next(source))
    await asyncio.sleep(seconds)
    elapsed_s = time.perf_counter() - began_s
    client = (time.process_time() - began_cpu_s) / elapsed_s
    tokens = sum(one.tokens for one in good)
    async with asyncio.timeout(PATIENCE_S):
        await all_rest.wait()
    for connection in resting:
        connection.abort()
    return Peak(len(good) / elapsed_s, tokens / elapsed_s, client)


def with_deadline(one: Request) -> Request:
    header = f"\r\nx-vectord-timeout-ms: {DEADLINE_S * 1e3:.0f}\r\n\r\n".encode()
    return Request(one.payload.replace(b"\r\n\r\n", header, 1), one.texts, one.tokens)


async def _offer(port: int, requests: Sequence[Request], found: Overloaded, seconds: float) -> None:
    began_s = time.perf_counter()
    warm_cpu_s = 0.0

    def warmed() -> None:
        nonlocal warm_cpu_s
        warm_cpu_s = time.process_time()

    def answered(one: Request, answer: Answer) -> None:
        if WARM_S <= time.perf_counter() - answer.latency_s - began_s < seconds:
            count(found, one, answer)

    asyncio.get_running_loop().call_later(WARM_S, warmed)
    arrivals = Arrivals(port, requests, found.offered_per_s, PATIENCE_S, answered)
    await arrivals.send(seconds)
    found.elapsed_s = seconds - WARM_S
    found.client = (time.process_time() - warm_cpu_s) / found.elapsed_s
    found.late_arrivals = arrivals.late
    await arrivals.end()


def count(found: Overloaded, one: Request, answer: Answer) -> None:
    latency_ms = answer.latency_s * 1e3
    if answer.status == 200 and answer.latency_s <= DEADLINE_S:
        found.good += 1
        found.good_tokens += one.tokens
        found.good_ms.append(latency_ms)
    elif answer.status in (200, 504):
        found.late += 1
    elif answer.status in REFUSALS:
        found.refused += 1
        found.refused_ms.append(latency_ms)
    elif answer.status == 0:
        found.unanswered += 1
    else:
        found.other += 1


def rows(found: Overloaded) -> list[Row]:
    goodput = found.good_tokens / found.elapsed_s
    peak_tokens_per_s = fmean(found.peaks_tokens_per_s)
    share = goodput / peak_tokens_per_s
    good, refused = found.good_ms or [0.0], found.refused_ms or [0.0]
    refused_p99_ms = float(np.percentile(refused, 99))
    left = (found.processors - found.peak_client) / (found.processors - found.client)
    return [
        Row(
            what=f"peak, {PEAK_CONNECTIONS} connections in a circle",
            value=" and ".join(f"{peak:,.0f}" for peak in found.peaks_tokens_per_s) + " tokens/s before and after",
            tokens_per_s=peak_tokens_per_s,
        ),
        Row(what=f"offered for {found.elapsed_s:.0f} s", requests_per_s=found.offered_per_s),
        Row(
            what="answered within their deadline",
            value=f"{share:.2f} of the peak",
            requests_per_s=found.good / found.elapsed_s,
            tokens_per_s=goodput,
            p50_ms=float(np.percentile(good, 50)),
            p99_ms=float(np.percentile(good, 99)),
            **at_least(share, 0.95, ""),
        ),
        Row(
            what="the same, had the peak's load generator taken as much",
            value=f"{share * left:.2f} of the peak",
        ),
        Row(
            what="refused",
            requests_per_s=found.refused / found.elapsed_s,
            p50_ms=float(np.percentile(refused, 50)),
            p99_ms=refused_p99_ms,
            **at_most(refused_p99_ms, REFUSED_P99_MS, " ms p99"),
        ),
        Row(what="accepted, and late", value=f"{found.late}", **at_most(found.late, 0, "")),
        Row(what="unanswered", value=f"{found.unanswered}", **at_most(found.unanswered, 0, "")),
        Row(what="other statuses", value=f"{found.other}", **at_most(found.other, 0, "")),
        Row(
            what=f"of {found.processors} processors the load generator takes",
            value=f"{found.peak_client:.3f} at the peak, {found.client:.3f} in the overload",
        ),
        Row(what="sent late by the load generator", value=f"{found.late_arrivals}"),
    ]
