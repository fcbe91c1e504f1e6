"""`vectord bench`: the requests of its scenarios, in the form that the server accepts, and the load of them."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, repeat
from typing import Any

import numpy as np

from vectord.client.transport import run_blocking
from vectord.tools.probe import FULL_FORMS, HELLO, ProbedRoute, ProbedServer, find_embed_route, find_rerank_route

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
    """The server has no route for a scenario."""


def scenario(server: ProbedServer, name: str, *, model: str | None, batch_size: int, repeated: bool) -> Scenario:
    """name: one of SCENARIOS. repeated: one body for all requests; else all texts are new. Raises Unsupported."""
    numbers = count(secrets.randbelow(8 * 10**7) + 10**7)  # of 8 digits
    batches = ([_sentence(next(numbers)) for _ in range(batch_size)] for _ in repeat(None))
    if name == "rerank":
        route, results = find_rerank_route(server, model), "scores"
    elif name == "embed_full":
        route, results = find_embed_route(server, model, forms=FULL_FORMS), "dense, sparse and ColBERT vectors"
    else:
        route, results = find_embed_route(server, model), "vectors"
    if route is None:
        why = f": {ProbedRoute(server, FULL_FORMS[0], model).embed(HELLO)[0].summary()}" if name == "embed_full" else ""
        raise Unsupported(f"no route returns {results}{why}")
    queries = (f"Why does report number {number} matter?" if name == "rerank" else None for number in numbers)
    bodies = map(route.body, batches, queries)
    return Scenario(route.form.path, route.form.name, repeat(next(bodies)) if repeated else bodies)


def _sentence(number: int) -> str:
    """15 words, which no cache holds: the first number of a benchmark is random."""
    subject, verb, what = _SUBJECTS[number % 6], _VERBS[number // 6 % 6], _OBJECTS[number // 36 % 3]
    return f"{subject} {verb} {what}, and report number {number} says why it matters."


# --- load -----------------------------------------------------------------------------------------------------


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


def figures_of(
    scenario: str,
    latencies_ms: Sequence[float],
    failures: Mapping[str, int],
    *,
    concurrency: int,
    units_per_request: int,
    wall_s: float,
    cpu_s: float,
) -> Figures:
    """latencies_ms: of the successful requests. failures: how often each occurred."""
    ok, failed = len(latencies_ms), sum(failures.values())
    wall_s = max(wall_s, 1e-9)
    times: dict[str, float | None] = dict.fromkeys(("avg_ms", "p50_ms", "p95_ms", "p99_ms", "min_ms", "max_ms"))
    if ok:
        percentiles = np.percentile(latencies_ms, (50, 95, 99, 0, 100))
        rounded = (round(float(ms), 3) for ms in (np.mean(latencies_ms), *percentiles))
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
        failures=dict(failures),
    )


def put_load(
    scenario: str,
    server: ProbedServer,
    chosen: Scenario,
    *,
    requests: int,
    concurrency: int,
    warmup: int,
    units_per_request: int,
    report: Callable[[int], None],
) -> Figures:
    """Send `requests` requests, each with the next body, after `warmup` uncounted ones.

    report: receives the number of finished requests.
    """

    def send(count: int, report: Callable[[int], None]) -> tuple[list[float], Counter[str]]:
        latencies_ms: list[float] = []
        failures: Counter[str] = Counter()
        remaining = iter(range(count))

        async def work() -> None:
            for _ in remaining:
                body = json.dumps(next(chosen.bodies)).encode()
                began_s = time.perf_counter()
                reply = await server.exchange("POST", chosen.path, body)
                if reply.status == 200:
                    latencies_ms.append((time.perf_counter() - began_s) * 1e3)
                else:
                    failures[f"status {reply.status}" if reply.status else reply.summary()] += 1
                report(len(latencies_ms) + failures.total())

        async def run() -> None:
            await asyncio.gather(*(work() for _ in range(min(concurrency, count))))

        run_blocking(run())
        return latencies_ms, failures

    send(warmup, lambda done: None)
    began_s, cpu_began_s = time.perf_counter(), time.process_time()
    latencies_ms, failures = send(requests, report)
    wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_began_s
    return figures_of(
        scenario,
        latencies_ms,
        failures,
        concurrency=concurrency,
        units_per_request=units_per_request,
        wall_s=wall_s,
        cpu_s=cpu_s,
    )
