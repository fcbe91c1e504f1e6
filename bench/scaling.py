"""More cores than one: a model of the server's throughput from its measured parts, compared with this machine.

The parts are processor seconds for a request, measured with the server on one core and the load generator on others:
the event loop's and the other threads', and with front-ends those of a front-end and of the engine process. With n
cores a server answers at most

    n / (sum of all parts)       all cores are busy
    1 / (the event loop's part)  the event loop's thread is busy; with f front-ends, f / (a front-end's part)
    1 / (the engine's part)      with front-ends, the loop of the process with the models is busy

requests a second. The model assumes that a part costs the same on n cores as on one. It has no term for memory: the
rows contain an upper bound of the traffic, to be compared with the machine's bandwidth. On a machine with more cores
than one, the same server runs on 2, 4, 8 and so on, and each row has the measured share of the model's rate.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import psutil  # type: ignore[import-untyped]

from bench.http_load import Round, embedding_requests, run_load
from bench.report import Row, load_row
from bench.server_process import Server
from bench.subject import Subject

CONNECTIONS = 32
CELL_S = 6.0
COMPUTED = (4, 8, 16, 32, 64)  # cores of the rows that are only computed
FRONT_ENDS = 4  # of these rows: at most so many

# Upper bound of the memory traffic of a token in MiniLM's forward pass: every layer reads or writes eight rows of the
# hidden size and two of the feed-forward size, in 4 bytes each; the weights are read once for 1,024 tokens.
TOKEN_BYTES = 6 * (8 * 384 + 2 * 1536) * 4 + 22_700_000 * 4 // 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Processor seconds for a request, by place. engine_s: the loop of the engine process; 0 without front-ends."""

    loop_s: float
    engine_s: float
    compute_s: float
    client_s: float

    def requests_per_s(self, cores: int, front_ends: int = 1, *, with_client: bool = False) -> float:
        """The model. with_client: the load generator runs on the same cores."""
        busy_s = self.loop_s + self.engine_s + self.compute_s + self.client_s * with_client
        limits = [cores / busy_s, front_ends / self.loop_s]
        return min(*limits, 1 / self.engine_s) if self.engine_s else min(limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """One server on some cores."""

    what: str
    computes: bool
    texts: int  # of a request
    tokens: float  # of a request
    front_ends: int  # 1: one process
    parts: Parts  # measured on one core
    measured: Sequence[tuple[int, Round]]  # with the number of cores


def measure(subject: Subject, texts: int) -> list[Scaling]:
    """The default model with 1 and 16 texts a request, and a backend that computes nothing, with 1 and 2 front-ends."""
    cores = sorted(os.sched_getaffinity(0))
    empty = replace(subject, backend="fake")
    return [
        _measure(subject, "the default model", texts, 1, 1, cores),
        _measure(subject, "the default model", texts, 16, 1, cores),
        _measure(empty, "no computation, one process", texts, 1, 1, cores),
        _measure(empty, "no computation, 2 front-ends", texts, 1, 2, cores),
    ]


def _measure(subject: Subject, what: str, texts: int, a_request: int, front_ends: int, cores: Sequence[int]) -> Scaling:
    requests = embedding_requests(subject.corpus.first(texts), a_request)

    def load(count: int) -> tuple[Round, Parts]:
        with _only(cores[:count]):
            server = subject.start_server("--front-ends", str(front_ends))
        with server:
            server.wait_until_answering()
            run_load(server.port, requests, CONNECTIONS, CELL_S / 2)
            return _load_and_parts(server, lambda: run_load(server.port, requests, CONNECTIONS, CELL_S))

    counts = [1, *(2**power for power in range(1, 12) if 2**power <= len(cores))]
    rounds = [load(count) for count in counts]
    return Scaling(
        what=what,
        computes=subject.backend != "fake",
        texts=a_request,
        tokens=rounds[0][0].tokens / rounds[0][0].requests,
        front_ends=front_ends,
        parts=rounds[0][1],
        measured=[(count, measured) for count, (measured, _) in zip(counts, rounds, strict=True)],
    )


@contextmanager
def _only(cores: Sequence[int]) -> Iterator[None]:
    """Processes started within run on these cores."""
    all_cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, all_cores)


def _load_and_parts(server: Server, load: Callable[[], Round]) -> tuple[Round, Parts]:
    """The parts are the shares of the processor time between two readings, divided by the measured rate."""
    before, began_s = _processor_s(server), time.perf_counter()
    measured = load()
    elapsed_s = time.perf_counter() - began_s
    after = _processor_s(server)
    request_s = 1 / measured.requests_per_s
    loop, engine, compute = ((b - a) / elapsed_s * request_s for a, b in zip(before, after, strict=True))
    return measured, Parts(loop_s=loop, engine_s=engine, compute_s=compute, client_s=measured.client_us / 1e6)


def _processor_s(server: Server) -> tuple[float, float, float]:
    """Processor seconds until now: of event loops, of the engine's loop, and of all other threads."""
    main = psutil.Process(server.process.pid)
    processes = main.children() or [main]
    engines = [_threads_s(each) for each in processes if each.cmdline()[-1].endswith(".engine")]
    servers = [_threads_s(each) for each in processes if not each.cmdline()[-1].endswith(".engine")]
    others_s = sum(others for _, others in engines + servers)
    return sum(loop for loop, _ in servers), sum(loop for loop, _ in engines), others_s


def _threads_s(process: psutil.Process) -> tuple[float, float]:
    """Of the main thread, which runs the event loop, and of the others."""
    seconds = {thread.id: thread.user_time + thread.system_time for thread in process.threads()}
    loop_s = seconds.pop(process.pid)
    return loop_s, sum(seconds.values())


def rows(found: Sequence[Scaling]) -> list[Row]:
    return [row for one in found for row in _rows(one)]


def _rows(one: Scaling) -> Iterator[Row]:
    parts = one.parts
    engine = f", engine {parts.engine_s * 1e6:.0f}" if parts.engine_s else ""
    costs = f"loop {parts.loop_s * 1e6:.0f} us{engine}, other threads {parts.compute_s * 1e6:.0f} us a request"
    name = f"{one.what}, {one.texts} text{'s'[: one.texts > 1]} a request"
    yield Row(what=name, value=costs)
    cores = max(count for count, _ in one.measured)
    for count, measured in one.measured:
        model = parts.requests_per_s(count, one.front_ends, with_client=count == cores and cores > 1)
        share = measured.requests_per_s / model
        yield load_row(f"  {_cores(count)}", measured, value=f"{share:.2f} of the model's {model:,.0f}")
    before = 0.0
    for count in COMPUTED:
        front_ends = 1 if one.front_ends == 1 else min(FRONT_ENDS, count // 2)
        model = parts.requests_per_s(count, front_ends)
        if model < before * 1.01:
            break  # a loop limits this row and all later ones
        before = model
        traffic = f"memory at most {model * one.tokens * TOKEN_BYTES / 1e9:.0f} GB/s" if one.computes else ""
        by = "" if front_ends == 1 else f", {front_ends} front-ends"
        yield Row(what=f"  {_cores(count)}{by}, computed", value=traffic, requests_per_s=model)


def _cores(count: int) -> str:
    return f"{count} core{'s'[: count > 1]}"
