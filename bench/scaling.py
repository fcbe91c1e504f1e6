"""More cores than one: a model of the server's throughput from its measured parts, compared with this machine.

bench/scaling_model.py describes the model. Its parts are measured here: processor seconds for a request with the server
on one core, the efficiency of a stream with several threads, and the memory bandwidth. On a machine with more cores
than one, the same server runs on 2, 4, 8 and so on. Each row has the measured share of the model's rate, and the parts
on that number of cores, because the model assumes that they cost the same as on one.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import psutil  # type: ignore[import-untyped]

from bench import memory
from bench.child import Child
from bench.http_load import Request, Round, embedding_requests, run_load
from bench.report import Row, load_row
from bench.run import best_rate
from bench.scaling_model import BGE_M3, MINILM, Hardware, Network, Parts, ServerModel, serial_share
from bench.server_process import Server
from bench.subject import Subject

CONNECTIONS = 32
WARM_S = 2.0
CELL_S = 3.0
COMPUTED = (4, 8, 16, 32, 64)  # cores of the rows that are only computed
FRONT_ENDS = 4  # of these rows: at most so many
STREAM_THREADS = 4  # at most so many threads of a stream are measured; choose_streams gives a stream no more
STREAM_ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """One server on some cores."""

    what: str
    texts: int  # of a request
    front_ends: int  # 1: one process
    model: ServerModel
    measured: Sequence[tuple[int, Round, Parts]]  # with the number of cores; empty: computed only


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    hardware: Hardware
    efficiency: tuple[int, float]  # of one stream, with its number of threads
    servers: Sequence[Scaling]


def measure(subject: Subject, texts: int) -> Found:
    """The default model with 1 and 16 texts a request, and a backend that computes nothing, with 1 and 2 front-ends.

    BGE-M3's shape is computed from the default model's parts.
    """
    cores = sorted(os.sched_getaffinity(0))
    threads = min(STREAM_THREADS, len(cores))
    efficiency, dtype = _stream_efficiency(subject, texts // 2, cores[:threads])
    cache_bytes = memory.last_level_cache_bytes(cores)
    hardware = Hardware(
        serial_share=serial_share(threads, efficiency),
        core_bytes_per_s=memory.bytes_per_s(1, cache_bytes),
        all_bytes_per_s=memory.bytes_per_s(len(cores), cache_bytes),
        cache_bytes=cache_bytes,
    )
    minilm, bge_m3 = (replace(network, dtype=dtype) for network in (MINILM, BGE_M3))
    empty = replace(subject, backend="fake")

    def server(subject: Subject, what: str, network: Network | None, a_request: int, front_ends: int) -> Scaling:
        requests = embedding_requests(subject.corpus.first(texts), a_request)
        measured = _measure(subject, requests, front_ends, cores)
        _, first, parts = measured[0]
        tokens = first.tokens / first.requests
        model = ServerModel(parts=parts, hardware=hardware, network=network, tokens=tokens, requests=CONNECTIONS)
        return Scaling(what=what, texts=a_request, front_ends=front_ends, model=model, measured=measured)

    default = [server(subject, "the default model", minilm, a_request, 1) for a_request in (1, 16)]
    large = [replace(one, what="BGE-M3's shape", model=one.model.with_network(bge_m3), measured=()) for one in default]
    without = [
        server(empty, "no computation, one process", None, 1, 1),
        server(empty, "no computation, 2 front-ends", None, 1, 2),
    ]
    return Found(hardware=hardware, efficiency=(threads, efficiency), servers=[*default, *large, *without])


def _stream_efficiency(subject: Subject, texts: int, cores: Sequence[int]) -> tuple[float, str]:
    """The rate of one stream with a thread for each core, relative to a stream for each core, and the dtype.

    The median of alternating rounds, in process.
    """
    arguments = (sys.executable, "bench.in_process", *subject.in_process_arguments)
    with _only(cores), Child(*arguments, "1") as one, Child(*arguments, str(len(cores))) as many:
        ratios = []
        for _ in range(STREAM_ROUNDS):
            rate, reference = (best_rate([child.ask(measure="throughput", texts=texts)]) for child in (one, many))
            ratios.append(rate / reference)
        return statistics.median(ratios), one.ask(measure="facts")["dtype"]


def _measure(
    subject: Subject, requests: Sequence[Request], front_ends: int, cores: Sequence[int]
) -> list[tuple[int, Round, Parts]]:
    """On 1, 2, 4 and so on of these cores."""

    def load(count: int) -> tuple[int, Round, Parts]:
        with _only(cores[:count]):
            server = subject.start_server("--front-ends", str(front_ends))
        with server:
            server.wait_until_answering()
            run_load(server.port, requests, CONNECTIONS, WARM_S)
            return count, *_load_and_parts(server, lambda: run_load(server.port, requests, CONNECTIONS, CELL_S))

    return [load(2**power) for power in range(12) if 2**power <= len(cores)]


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


def rows(found: Found) -> list[Row]:
    hardware, (threads, efficiency) = found.hardware, found.efficiency
    rates = f"{hardware.core_bytes_per_s / 1e9:.1f} and {hardware.all_bytes_per_s / 1e9:.1f} GB/s"
    return [
        Row(
            what="memory bandwidth of one core and of all",
            value=f"{rates}, cache {hardware.cache_bytes / 2**20:.0f} MiB",
        ),
        Row(
            what=f"1 stream of {threads} thread{'s'[: threads > 1]} / {threads} stream{'s'[: threads > 1]} of 1",
            value=f"{efficiency:.2f}",
        ),
        *(row for one in found.servers for row in server_rows(one)),
    ]


def server_rows(one: Scaling) -> Iterator[Row]:
    yield Row(what=f"{one.what}, {one.texts} text{'s'[: one.texts > 1]} a request")
    cores = max((count for count, _, _ in one.measured), default=1)
    for count, measured, parts in one.measured:
        limits = one.model.limits(count, one.front_ends, with_client=count == cores and cores > 1)
        limit, rate = min(limits.items(), key=lambda item: item[1])
        share = f"{measured.requests_per_s / rate:.2f} of the model's {rate:,.1f} ({limit})"
        yield load_row(f"  {_cores(count)}", measured, value=f"{share}; {_costs(parts)}")
    before = 0.0
    for count in COMPUTED:
        front_ends = 1 if one.front_ends == 1 else min(FRONT_ENDS, count // 2)
        limits = one.model.limits(count, front_ends)
        limit, rate = min(limits.items(), key=lambda item: item[1])
        if limit != "memory" and rate < before * 1.01:
            break  # a loop limits this row and all later ones
        before = rate
        yield Row(
            what=f"  {_cores(count)}{f', {front_ends} front-ends' * (front_ends > 1)}, computed",
            value=f"limit: {limit}{_traffic(one.model, count, limits)}",
            requests_per_s=rate,
            tokens_per_s=rate * one.model.tokens,
        )


def _costs(parts: Parts) -> str:
    engine = f", engine {parts.engine_s * 1e6:.0f}" if parts.engine_s else ""
    return f"loop {parts.loop_s * 1e6:.0f}{engine}, other threads {parts.compute_s * 1e6:.0f} us"


def _traffic(model: ServerModel, cores: int, limits: Mapping[str, float]) -> str:
    """The streams, and the memory traffic at the rate that the other limits allow."""
    if model.network is None:
        return ""
    streams, token_bytes = model.streams(cores), model.token_bytes(cores)
    rate = min(rate for limit, rate in limits.items() if limit != "memory")
    needed, available = rate * model.tokens * token_bytes, model.hardware.bytes_per_s(cores)
    memory = f"{token_bytes / 1e3:.0f} kB a token, {needed / 1e9:.1f} of {available / 1e9:.1f} GB/s"
    return f"; {streams} x {cores / streams:g} threads; {memory}"


def _cores(count: int) -> str:
    return f"{count} core{'s'[: count > 1]}"
