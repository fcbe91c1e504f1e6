"""Kernels by their time on the device, for full batches, and for a query with and without its graph. A section of
gpu.py."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from bench.gpu_forward import batch_of, load_shape
from bench.gpu_options import Options, read_options
from bench.gpu_section import Say, attempt, speaker
from bench.gpu_shapes import QUERY_TOKENS, shape_named
from bench.in_process import DENSE
from vectord.compute.backends.base import TokenBatch
from vectord.compute.backends.torch.graphs import Graphs

WARM_RUNS, BATCHES, QUERIES = 3, 8, 50
SHOWN = 24  # kernels


def measure(options: Options, found: Say) -> None:
    (name,) = options.models
    shape = shape_named(name, quick=options.quick)
    backend = load_shape(shape, options, found)

    def run(batch: TokenBatch) -> Callable[[], object]:
        return lambda: backend.forward(batch, 0)

    for length in (min(512, shape.longest), 16):
        texts = max(1, backend.facts.max_batch_tokens // length)
        with attempt(found, f"a batch of {texts} x {length}"):
            batch = batch_of(shape, [length] * texts, DENSE, seed=0)
            _kernels(f"{name}, {texts} x {length} tokens", run(batch), BATCHES, options, found)
    query = batch_of(shape, [QUERY_TOKENS], DENSE, seed=0, alone=True)
    if len(backend.graphs):
        with attempt(found, "a query with its graph"):
            _kernels(f"{name}, one query with its graph", run(query), QUERIES, options, found)
    backend.graphs = Graphs()
    with attempt(found, "a query without graph"):
        _kernels(f"{name}, one query without graph", run(query), QUERIES, options, found)


def _kernels(what: str, run: Callable[[], object], times: int, options: Options, found: Say) -> None:
    """The time of a run without the profiler; name, microseconds and launches of its longest kernels, with it."""
    times = 1 if options.quick else times
    on_gpu = options.device != "cpu"
    for _ in range(WARM_RUNS):
        run()
    began_s = time.perf_counter()
    for _ in range(times):
        run()
    seconds = (time.perf_counter() - began_s) / times
    activities = [ProfilerActivity.CUDA] if on_gpu else []
    with profile(activities=[ProfilerActivity.CPU, *activities]) as profiled:
        for _ in range(times):
            run()
        if on_gpu:
            torch.cuda.synchronize()
    kernels = [
        (
            event.key,
            (event.self_device_time_total if on_gpu else event.self_cpu_time_total) / times,
            event.count / times,
        )
        for event in profiled.key_averages()
    ]
    kernels.sort(key=lambda kernel: -kernel[1])
    found("kernels", what=what, seconds=seconds, device_seconds=sum(us for _, us, _ in kernels) / 1e6,
          longest=[(name[:120], round(us, 1), count) for name, us, count in kernels[:SHOWN]])  # fmt: skip


if __name__ == "__main__":
    measure(read_options(), speaker())
