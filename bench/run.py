"""`make bench`: vectord, compared with the machine's ceiling and with its backend's forward."""

from __future__ import annotations

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bench.child import Child
from bench.http_load import EMPTY, Request, Round, embedding_requests, run_load
from bench.report import Row, at_least, at_most, load_name, load_row
from bench.server_process import Server
from bench.startup import SETTLE_S, Start, measure_starts
from bench.subject import Subject
from vectord.compute.processor import multiplies_bfloat16, thread_budget

GRID = [
    *((connections, 1) for connections in (64, 32, 16, 8, 4, 2, 1)),
    *((connections, 16) for connections in (32, 8, 1)),
]
SHARES = {(32, 1): 0.95, (8, 1): 0.85}  # of the rate in process, by (connections, texts)
ALONE = (12, 61)  # tokens: a query, and the mean of the corpus
ALONE_TEXTS = 16  # of each length
ALONE_REQUESTS = 304
RESTS_MS = (0, 1, 5)  # pauses before a bare forward
HTTP_REST_MS = 1  # about the pause between two forwards of one connection
CELL_S = 6.0  # time limit of a cell of the grid in a round
STARTS = 5


@dataclass(frozen=True, slots=True)
class Found:
    """Every round of every measurement, by name."""

    rounds: Mapping[str, Sequence[Any]]
    starts: Sequence[Start]
    loaded_bytes: int  # resident, the largest after any measurement
    idle_bytes: int  # resident, SETTLE_S after the last one
    facts: Mapping[str, Any]  # the backend's


def measure(subject: Subject, rounds: int, texts: int) -> Found:
    """Start everything once, then run all measurements `rounds` times, so that noise affects all of them."""
    print(f"starting {STARTS + 1} times", file=sys.stderr)
    starts = measure_starts(subject.start_server, STARTS)
    found: dict[str, list[Any]] = defaultdict(list)
    loaded_bytes = 0
    with (
        Child(sys.executable, "bench.ceiling") as ceiling,
        Child(sys.executable, "bench.in_process", *subject.in_process_arguments) as in_process,
        Child(sys.executable, "bench.embedder", *subject.in_process_arguments) as embedder,
        subject.start_server() as server,
    ):
        facts = in_process.ask(measure="facts")
        server.wait_until_answering()
        subject.check(server)
        steps: dict[str, Callable[[], Any]] = {
            **_ceilings(ceiling),
            "in process": partial(in_process.ask, measure="throughput", texts=texts),
            **_outstanding(in_process, texts),
            **_grid(subject, texts, server),
            **_alone(subject, in_process, embedder, server),
        }
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
            for name, step in steps.items():
                found[name].append(step())
                loaded_bytes = max(loaded_bytes, server.resident_bytes())
        time.sleep(SETTLE_S)
        idle_bytes = server.resident_bytes()
    return Found(found, starts, loaded_bytes, idle_bytes, facts)


def _ceilings(ceiling: Child) -> dict[str, Callable[[], Any]]:
    # A CPU without bfloat16 instructions emulates it 100 times slower, which bounds nothing.
    dtypes = ("bfloat16", "float32") if multiplies_bfloat16() else ("float32",)
    return {f"ceiling {dtype}": partial(ceiling.ask, threads=thread_budget(), dtype=dtype) for dtype in dtypes}


def _outstanding(in_process: Child, texts: int) -> dict[str, Callable[[], Any]]:
    """As many texts in progress as connections with one text each keep: the bound of their rate."""
    return {
        f"{connections} outstanding": partial(
            in_process.ask, measure="throughput", texts=texts, outstanding=connections
        )
        for connections, _ in SHARES
    }


def _grid(subject: Subject, texts: int, server: Server) -> dict[str, Callable[[], Any]]:
    part = subject.corpus.first(texts)
    return {
        f"http {connections} x {n}": partial(run_load, server.port, embedding_requests(part, n), connections, CELL_S)
        for connections, n in GRID
    }


def _alone(subject: Subject, in_process: Child, embedder: Child, server: Server) -> dict[str, Callable[[], Any]]:
    """One text at a time, of one length: by a forward, by `vectord.Embedder`, then over HTTP."""
    steps: dict[str, Callable[[], Any]] = {}
    for tokens in ALONE:
        positions = subject.corpus.nearest(tokens, ALONE_TEXTS)
        requests = embedding_requests(subject.corpus.pick(positions), 1)
        repeated = requests * (ALONE_REQUESTS // ALONE_TEXTS)
        for rest_ms in RESTS_MS:
            forward = partial(in_process.ask, measure="latency", positions=positions, rest_ms=rest_ms)
            steps[f"forward {tokens} after {rest_ms} ms"] = forward
        steps[f"embedder {tokens}"] = partial(embedder.ask, positions=positions, rest_ms=HTTP_REST_MS)
        steps[f"alone {tokens}"] = partial(run_load, server.port, repeated, 1)
        steps[f"empty {tokens}"] = partial(_empty, server.port, repeated)
    return steps


def _empty(port: int, requests: Sequence[Request]) -> dict[str, float]:
    """Latency of GET /health/live, sent after each of these requests, so that caches and cores are as for a query."""
    measured = run_load(port, [each for request in requests for each in (request, EMPTY)], 1)
    latencies_ms = measured.latencies_ms[::2]  # those of EMPTY, since the first request is not counted
    return {f"p{percent}_ms": float(np.percentile(latencies_ms, percent)) for percent in (50, 99)}


# --- findings as rows -----------------------------------------------------------------------------------------


def rows(found: Found) -> list[Row]:
    """The best round of each measurement, since other load can only slow a round."""
    in_process = best_rate(found.rounds["in process"])
    return [
        *_ceiling_rows(found),
        _in_process_row(found, in_process),
        *_outstanding_rows(found, in_process),
        *_grid_rows(found, in_process),
        *_alone_rows(found),
        *_process_rows(found),
    ]


def best_rate(rounds: Sequence[Mapping[str, Any]]) -> float:
    """Tokens per second of a child's fastest round."""
    return max(float(measured["tokens"] / measured["elapsed_s"]) for measured in rounds)


def best_load(rounds: Sequence[Round]) -> Round:
    return max(rounds, key=lambda measured: measured.tokens_per_s)


def _ceiling(found: Found, dtype: str) -> Mapping[str, float] | None:
    rounds = found.rounds.get(f"ceiling {dtype}", ())
    return max(rounds, key=lambda measured: float(measured["tokens_per_s"]), default=None)


def _ceiling_rows(found: Found) -> list[Row]:
    ceilings = {dtype: _ceiling(found, dtype) for dtype in ("bfloat16", "float32")}
    return [
        Row(
            what=f"matrix ceiling, {dtype}",
            value=f"{best['gflop_per_s']:,.0f} GFLOP/s",
            tokens_per_s=best["tokens_per_s"],
        )
        for dtype, best in ceilings.items()
        if best is not None
    ]


def _in_process_row(found: Found, rate: float) -> Row:
    facts = found.facts
    what = f"in process, {facts['backend']} {facts['dtype']}, {facts['streams']} streams"
    ceiling = _ceiling(found, facts["dtype"])
    if ceiling is None:
        return Row(what=what, tokens_per_s=rate)
    share = rate / ceiling["tokens_per_s"]
    return Row(what=what, value=f"{share:.2f} of ceiling", tokens_per_s=rate, **at_least(share, 0.70, ""))


def _outstanding_rows(found: Found, in_process: float) -> list[Row]:
    rates = {connections: best_rate(found.rounds[f"{connections} outstanding"]) for connections, _ in SHARES}
    return [
        Row(
            what=f"in process, {count} texts at once", value=f"{rate / in_process:.2f} of in process", tokens_per_s=rate
        )
        for count, rate in rates.items()
    ]


def _grid_rows(found: Found, in_process: float) -> list[Row]:
    table = []
    for connections, texts in GRID:
        best = best_load(found.rounds[f"http {connections} x {texts}"])
        share = best.tokens_per_s / in_process
        wanted = SHARES.get((connections, texts))
        target = {} if wanted is None else at_least(share, wanted, "")
        what = f"HTTP, {load_name(connections, texts)}"
        table.append(load_row(what, best, value=f"{share:.2f} of in process", **target))
    return table


def _alone_rows(found: Found) -> list[Row]:
    table = []
    for tokens in ALONE:
        forwards = {
            rest_ms: min(found.rounds[f"forward {tokens} after {rest_ms} ms"], key=lambda measured: measured["p50_ms"])
            for rest_ms in RESTS_MS
        }
        bare = forwards[HTTP_REST_MS]
        best = min(found.rounds[f"alone {tokens}"], key=lambda measured: measured.percentile_ms(50))
        empty = min(found.rounds[f"empty {tokens}"], key=lambda measured: measured["p50_ms"])
        added_ms = best.percentile_ms(50) - empty["p50_ms"] - bare["p50_ms"]
        ratio = best.percentile_ms(50) / bare["p50_ms"]
        target = at_most(added_ms, 1, " ms") if tokens == ALONE[0] else at_most(ratio, 1.3, " x")
        table += [
            Row(what=f"bare forward, one text of {tokens} tokens, after {rest_ms} ms", **forward)
            for rest_ms, forward in forwards.items()
        ]
        called = min(found.rounds[f"embedder {tokens}"], key=lambda measured: measured["p50_ms"])
        what = f"vectord.Embedder, one text of {tokens} tokens, after {HTTP_REST_MS} ms"
        more_ms = called["p50_ms"] - bare["p50_ms"]
        table.append(Row(what=what, value=f"{more_ms:+.2f} ms", **called, **at_most(more_ms, 1, " ms")))
        table.append(Row(what=f"HTTP, one connection, GET /health/live after a text of {tokens} tokens", **empty))
        what = f"HTTP, one connection, one text of {tokens} tokens"
        value = f"{added_ms:+.2f} ms more than an empty one, {ratio:.2f} x"
        table.append(load_row(what, best, value=value, **target))
    return table


def _process_rows(found: Found) -> list[Row]:
    first_answer_s = statistics.median(start.first_answer_s for start in found.starts)
    ready_mb = max(start.settled_bytes for start in found.starts) / 1e6
    starting_mb = max(start.most_bytes for start in found.starts) / 1e6
    loaded_mb, idle_mb = found.loaded_bytes / 1e6, found.idle_bytes / 1e6
    return [
        Row(what="exec to first answer", value=f"{first_answer_s:.2f} s", **at_most(first_answer_s, 1, " s")),
        Row(what="resident when ready", value=f"{ready_mb:.0f} MB", **at_most(ready_mb, 250, " MB")),
        Row(what="resident while starting, most", value=f"{starting_mb:.0f} MB"),
        Row(what="resident after load", value=f"{loaded_mb:.0f} MB", **at_most(loaded_mb, 350, " MB")),
        Row(what=f"resident {SETTLE_S:g} s later", value=f"{idle_mb:.0f} MB", **at_most(idle_mb, 350, " MB")),
    ]
