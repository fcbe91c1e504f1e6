"""Five times what the server can do, offered for a while: how much it still does, and how those fare whom it refuses.

First a closed loop finds the peak. Then requests arrive at random, at a multiple of that rate, whether or not earlier
ones were answered: that is what users do. Each names its deadline in x-vectord-timeout-ms.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import uvloop

from bench.corpus import Corpus
from bench.exchange import Answer, Connection
from bench.http_load import Request, embedding_requests
from bench.report import Row, at_least, at_most
from bench.server_process import Server

TIMES = 5.0
PEAK_CONNECTIONS = 64
PEAK_S = 15.0
PEAK_WARM_S = 10.0  # the second plan is still being compiled behind the first answers
DEADLINE_S = 2.0
MAX_QUEUE_WAIT_S = 1.0  # of the server: half the deadline, so that what is accepted has time to be computed
PATIENCE_S = 20.0
WARM_S = 3.0  # of the overload: the queue fills first
REFUSED_P99_MS = 50.0
REFUSALS = (429, 503)
OPTIONS = ("--max-queue-wait-s", str(MAX_QUEUE_WAIT_S), "--request-timeout-s", "0")


@dataclass(slots=True)
class Overloaded:
    peak_tokens_per_s: float
    offered_per_s: float
    elapsed_s: float = 0.0
    good: int = 0  # answered within their deadline
    good_tokens: int = 0
    late: int = 0  # accepted, and answered too late or with 504
    refused: int = 0
    unanswered: int = 0
    other: int = 0  # any other status: none is right
    late_arrivals: int = 0  # that the load generator could not send in time, by 50 ms
    good_ms: list[float] = field(default_factory=list, repr=False)
    refused_ms: list[float] = field(default_factory=list, repr=False)


def overload(server: Server, corpus: Corpus, minutes: float) -> tuple[list[Row], list[Overloaded]]:
    """server: started with OPTIONS."""
    requests = embedding_requests(corpus, 1)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_peak(server.port, requests, PEAK_WARM_S))
        per_s, tokens_per_s = runner.run(_peak(server.port, requests, PEAK_S))
        found = Overloaded(peak_tokens_per_s=tokens_per_s, offered_per_s=TIMES * per_s)
        runner.run(_offer(server.port, [with_deadline(one) for one in requests], found, minutes * 60))
    return rows(found), [found]


async def _peak(port: int, requests: Sequence[Request], seconds: float) -> tuple[float, float]:
    """Requests and tokens a second, of connections that ask as soon as they are answered."""
    source = itertools.cycle(requests)
    answered: list[Request] = []
    began_s = time.perf_counter()

    async def ask() -> None:
        connection = Connection(port, PATIENCE_S)
        while time.perf_counter() - began_s < seconds:
            one = next(source)
            if (await connection.ask(one.payload)).status == 200:
                answered.append(one)
            else:  # a busy machine may be too slow for as many as we are
                await asyncio.sleep(0.05)
        connection.close()

    await asyncio.gather(*(ask() for _ in range(PEAK_CONNECTIONS)))
    elapsed_s = time.perf_counter() - began_s
    return len(answered) / elapsed_s, sum(one.tokens for one in answered) / elapsed_s


def with_deadline(one: Request) -> Request:
    header = f"\r\nx-vectord-timeout-ms: {DEADLINE_S * 1e3:.0f}\r\n\r\n".encode()
    return Request(one.payload.replace(b"\r\n\r\n", header, 1), one.texts, one.tokens)


async def _offer(port: int, requests: Sequence[Request], found: Overloaded, seconds: float) -> None:
    """Poisson arrivals; a connection is taken where one is free, else made."""
    chance = random.Random(0)
    free: deque[Connection] = deque()
    under_way: set[asyncio.Task[None]] = set()
    began_s = due_s = time.perf_counter()
    while due_s < began_s + seconds:
        due_s += chance.expovariate(found.offered_per_s)
        wait_s = due_s - time.perf_counter()
        if wait_s > 0.001:
            await asyncio.sleep(wait_s)
        counted = due_s - began_s >= WARM_S
        found.late_arrivals += counted and time.perf_counter() - due_s > 0.05
        task = asyncio.create_task(_ask(port, free, chance.choice(requests), found, counted))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
        if len(under_way) % 64 == 0:
            await asyncio.sleep(0)
    found.elapsed_s = time.perf_counter() - began_s - WARM_S
    await asyncio.gather(*under_way)
    for connection in free:
        connection.close()


async def _ask(port: int, free: deque[Connection], one: Request, found: Overloaded, counted: bool) -> None:
    connection = free.pop() if free else Connection(port, PATIENCE_S)
    answer = await connection.ask(one.payload)
    free.append(connection)
    if counted:
        count(found, one, answer)


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
    share = goodput / found.peak_tokens_per_s
    good, refused = found.good_ms or [0.0], found.refused_ms or [0.0]
    refused_p99_ms = float(np.percentile(refused, 99))
    return [
        Row(what=f"peak, {PEAK_CONNECTIONS} connections in a circle", tokens_per_s=found.peak_tokens_per_s),
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
            what="refused",
            requests_per_s=found.refused / found.elapsed_s,
            p50_ms=float(np.percentile(refused, 50)),
            p99_ms=refused_p99_ms,
            **at_most(refused_p99_ms, REFUSED_P99_MS, " ms p99"),
        ),
        Row(what="accepted, and late", value=f"{found.late}", **at_most(found.late, 0, "")),
        Row(what="unanswered", value=f"{found.unanswered}", **at_most(found.unanswered, 0, "")),
        Row(what="other statuses", value=f"{found.other}", **at_most(found.other, 0, "")),
        Row(what="sent late by the load generator", value=f"{found.late_arrivals}"),
    ]
