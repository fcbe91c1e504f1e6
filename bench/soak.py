"""Minutes of full load with adversarial lengths: checks every response, and records the server's memory.

pool of texts, with their vectors (soak_texts.py) ─▶ requests with random choices of them ─▶ comparison
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import orjson
import uvloop

from bench.exchange import Answer, Connection
from bench.http_load import HOST
from bench.report import Row, at_least, at_most
from bench.server_process import Server
from bench.soak_texts import Pool
from vectord.config import DEFAULT_MODEL

CONNECTIONS = 32
MOST_TEXTS = 8  # in a request
LONG_SHARE = 0.05  # of the requests, to the model for long texts
PATIENCE_S = 60.0  # until a request counts as unanswered
LOOK_S = 5.0  # between two samples of memory
WARM_S = 60.0  # growth counts from here
LEAST_COSINE = 0.999  # bfloat16 stays above 0.9999; another text's vector is much lower


@dataclass(slots=True)
class Soaked:
    """The counts. Only the load generator's loop writes them."""

    answered: int = 0
    texts: int = 0
    tokens: int = 0
    refused: int = 0  # any status but 200
    statuses: Counter[int] = field(default_factory=Counter)
    unanswered: int = 0
    wrong: int = 0  # wrong vectors
    least_cosine: float = 1.0
    elapsed_s: float = 0.0
    latencies_ms: list[float] = field(default_factory=list, repr=False)
    resident: list[tuple[float, int]] = field(default_factory=list, repr=False)  # seconds, bytes


def soak(server: Server, pool: Pool, long: Pool, minutes: float) -> tuple[list[Row], list[Soaked]]:
    """Load `server`, started with --auto-truncate, for `minutes`, and print a line on stderr every half minute."""
    found = load(server, pool, long, minutes * 60)
    return rows(found), [found]


def load(server: Server, pool: Pool, long: Pool, seconds: float, key: str | None = None) -> Soaked:
    """long: of a second model of the server, for LONG_SHARE of the requests. key: of the API; None: none."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_soak(server, pool, long, seconds, key))


async def _soak(server: Server, pool: Pool, long: Pool, seconds: float, key: str | None) -> Soaked:
    found = Soaked()
    began_s = time.perf_counter()
    chances = [random.Random(i) for i in range(CONNECTIONS)]
    watch = asyncio.create_task(_watch(server, found, began_s))
    until_s = began_s + seconds
    await asyncio.gather(*(_load(server.port, pool, long, found, chance, until_s, key) for chance in chances))
    watch.cancel()
    found.elapsed_s = time.perf_counter() - began_s
    found.resident.append((found.elapsed_s, server.resident_bytes()))
    return found


async def _load(
    port: int, usual: Pool, long: Pool, found: Soaked, chance: random.Random, until_s: float, key: str | None
) -> None:
    connection = Connection(port, PATIENCE_S)
    while time.perf_counter() < until_s:
        pool = long if chance.random() < LONG_SHARE else usual
        some = chance.choices(range(len(pool.texts)), k=chance.randint(1, MOST_TEXTS))
        answer = await connection.ask(request([pool.texts[i] for i in some], key, pool.model))
        count(found, pool, some, answer)
    connection.close()


def request(texts: Sequence[str], key: str | None = None, model: str = DEFAULT_MODEL) -> bytes:
    """With base64, so that reading responses takes little CPU time from the server."""
    body = json.dumps({"model": model, "input": list(texts), "encoding_format": "base64"}).encode()
    head = f"POST /v1/embeddings HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
    if key is not None:
        head += f"Authorization: Bearer {key}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def count(found: Soaked, pool: Pool, some: Sequence[int], answer: Answer) -> None:
    if answer.status == 0:
        found.unanswered += 1
        return
    found.answered += 1
    found.statuses[answer.status] += 1
    found.latencies_ms.append(answer.latency_s * 1e3)
    if answer.status != 200:
        found.refused += 1
        return
    found.texts += len(some)
    found.tokens += sum(pool.tokens[i] for i in some)
    data = orjson.loads(answer.body)["data"]
    if len(data) != len(some):
        found.wrong += len(some)
        return
    given = np.stack([np.frombuffer(base64.b64decode(item["embedding"]), np.float32) for item in data])
    cosines = np.einsum("nd,nd->n", given, pool.vectors[some])
    found.wrong += int((~(cosines >= LEAST_COSINE)).sum())  # NaN is wrong too
    found.least_cosine = min(found.least_cosine, float(cosines.min()))


async def _watch(server: Server, found: Soaked, began_s: float) -> None:
    for turn in itertools.count():
        elapsed_s = time.perf_counter() - began_s
        found.resident.append((elapsed_s, server.resident_bytes()))
        if turn % 6 == 0:
            megabytes = found.resident[-1][1] / 1e6
            counts = f"{found.answered:8,} answered  {found.unanswered} not  {found.wrong} wrong"
            print(f"{elapsed_s:6.0f} s  {megabytes:6.0f} MB  {counts}", file=sys.stderr)
        await asyncio.sleep(LOOK_S)


def growth(resident: Sequence[tuple[float, int]]) -> float | None:
    """The growth of memory after WARM_S, as a share. None for a shorter run."""
    later = [size for elapsed_s, size in resident if elapsed_s >= WARM_S]
    return later[-1] / later[0] - 1 if len(later) > 1 else None


def rows(found: Soaked) -> list[Row]:
    most_mb = max(size for _, size in found.resident) / 1e6
    latencies = found.latencies_ms or [0.0]
    shown = [
        Row(
            what=f"full load for {found.elapsed_s / 60:.1f} minutes",
            requests_per_s=found.answered / found.elapsed_s,
            tokens_per_s=found.tokens / found.elapsed_s,
            p50_ms=float(np.percentile(latencies, 50)),
            p99_ms=float(np.percentile(latencies, 99)),
        ),
        Row(what="unanswered requests", value=f"{found.unanswered}", **at_most(found.unanswered, 0, "")),
        Row(what="refused requests", value=f"{found.refused}", **at_most(found.refused, 0, "")),
        Row(what=f"wrong vectors, of {found.texts:,}", value=f"{found.wrong}", **at_most(found.wrong, 0, "")),
        Row(
            what="least cosine with float32",
            value=f"{found.least_cosine:.5f}",
            **at_least(found.least_cosine, LEAST_COSINE, ""),
        ),
        Row(what="resident, most", value=f"{most_mb:.0f} MB"),
    ]
    grown = growth(found.resident)
    if grown is not None:
        first = next(size for elapsed_s, size in found.resident if elapsed_s >= WARM_S)
        megabytes = f"{first / 1e6:.0f} -> {found.resident[-1][1] / 1e6:.0f} MB"
        percent = abs(100 * grown)
        shown.append(
            Row(what=f"resident after a minute, at the end: {100 * grown:+.1f} %", value=megabytes)
            if found.elapsed_s < 2 * WARM_S
            else Row(
                what=f"resident after a minute, at the end: {100 * grown:+.1f} %",
                value=megabytes,
                **at_most(percent, 10, " % apart"),
            )
        )
    return shown
