"""One model on the torch backend, in process: no HTTP, no tokenization, no queue. A section of gpu.py.

The backend is loaded as a server loads it, with its search for the batch size and its CUDA graphs.
"""

from __future__ import annotations

import itertools
import logging
import statistics
import threading
import time
from collections.abc import Collection, Sequence

import numpy as np

from bench.gpu_options import ROUNDS, Options, read_options
from bench.gpu_section import Say, attempt, speaker
from bench.gpu_shapes import QUERY_TOKENS, Shape, model_folder, shape_named
from bench.in_process import DENSE, pack
from vectord.checkpoints.hub import resolve
from vectord.checkpoints.reader import read_spec
from vectord.checkpoints.spec import Output
from vectord.compute.backends.base import BackendOptions, TokenBatch
from vectord.compute.backends.torch import TorchBackend, load, loading
from vectord.compute.backends.torch.graphs import Graphs
from vectord.compute.ops.torch import TorchOps

BATCHES = 4  # with different tokens, in rotation
FORWARDS = 300
LEAST_FORWARDS = 20
THREE: tuple[Output, ...] = ("dense", "lexical", "colbert")


def measure(options: Options, found: Say) -> None:
    (name,) = options.models
    shape = shape_named(name, quick=options.quick)
    backend = load_shape(shape, options, found)
    for length in shape.lengths:
        with attempt(found, f"{name}, {length} tokens"):
            _rate(backend, shape, length, DENSE, options, found)
    if len(backend.graphs):
        with attempt(found, f"{name}, one query with graphs"):
            _latency(backend, shape, "with graphs", options, found)
    backend.graphs = Graphs()
    with attempt(found, f"{name}, one query without graphs"):
        _latency(backend, shape, "without graphs", options, found)
    if name == "bge-m3":
        with attempt(found, "bge-m3's three vectors"):
            _rate(backend, shape, min(512, shape.longest), THREE, options, found)


def load_shape(shape: Shape, options: Options, found: Say) -> TorchBackend:
    folder = model_folder(shape, options.models_folder, quick=options.quick)
    log = _LogLines()
    logging.getLogger("vectord").addHandler(log)
    logging.getLogger("vectord").setLevel(logging.INFO)
    began_s = time.perf_counter()
    if options.plain:
        loading.fused_ops = lambda device, dtype: TorchOps  # type: ignore[assignment]
    backend = load(read_spec(resolve(str(folder))), BackendOptions(device=options.device, dtype=options.dtype))
    facts = backend.facts
    found(
        "loaded",
        model=shape.name,
        seconds=time.perf_counter() - began_s,
        dtype=facts.dtype,
        streams=facts.streams,
        max_batch_tokens=facts.max_batch_tokens,
        graphs=len(backend.graphs),
        log=log.lines,
    )
    return backend


class _LogLines(logging.Handler):
    """Collects the log of the load."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _rate(
    backend: TorchBackend, shape: Shape, length: int, outputs: Sequence[Output], options: Options, found: Say
) -> None:
    """Full batches of texts of one length, all streams busy; the median of ROUNDS."""
    texts = max(1, backend.facts.max_batch_tokens // length)
    batches = [batch_of(shape, [length] * texts, outputs, seed) for seed in range(BATCHES)]
    for stream in range(backend.facts.streams):
        backend.forward(batches[stream % BATCHES], stream)
    rates = [_round(backend, batches, options.round_s) for _ in range(ROUNDS)]
    found(
        "rate",
        model=shape.name,
        how=options.how("in process" if len(outputs) == 1 else "in process, three vectors"),
        length=length,
        texts=texts,
        tokens_per_s=statistics.median(rates),
        rounds=rates,
        flop_per_token=shape.flop_per_token(length),
    )


def _round(backend: TorchBackend, batches: Sequence[TokenBatch], round_s: float) -> float:
    """Tokens per second."""
    done = [0] * backend.facts.streams
    ended_s = [0.0] * backend.facts.streams
    failed: list[BaseException] = []
    began_s = time.perf_counter()

    def work(stream: int) -> None:
        try:
            for batch in itertools.islice(itertools.cycle(batches), stream, None):
                backend.forward(batch, stream)
                done[stream] += batch.texts.ids.size
                ended_s[stream] = time.perf_counter()
                if ended_s[stream] > began_s + round_s:
                    return
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(stream,)) for stream in range(backend.facts.streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return sum(done) / (max(ended_s) - began_s)


def _latency(backend: TorchBackend, shape: Shape, how: str, options: Options, found: Say) -> None:
    """One text of QUERY_TOKENS at a time on an idle device, from ids on the host to the vector on the host."""
    batches = [batch_of(shape, [QUERY_TOKENS], DENSE, seed, alone=True) for seed in range(BATCHES)]
    for batch in batches * 2:
        backend.forward(batch, 0)
    latencies_ms: list[float] = []
    until_s = time.perf_counter() + ROUNDS * options.round_s
    while len(latencies_ms) < LEAST_FORWARDS or (len(latencies_ms) < FORWARDS and time.perf_counter() < until_s):
        began_s = time.perf_counter()
        backend.forward(batches[len(latencies_ms) % BATCHES], 0)
        latencies_ms.append((time.perf_counter() - began_s) * 1e3)
    p50_ms, p99_ms = np.percentile(latencies_ms, [50, 99])
    found(
        "latency",
        model=shape.name,
        how=options.how(how),
        tokens=QUERY_TOKENS,
        p50_ms=float(p50_ms),
        p99_ms=float(p99_ms),
    )


def batch_of(
    shape: Shape, lengths: Sequence[int], outputs: Collection[Output], seed: int, *, alone: bool = False
) -> TokenBatch:
    rng = np.random.default_rng(seed)
    texts = [rng.integers(5, shape.config["vocab_size"] - 5, length).tolist() for length in lengths]
    return pack(texts, alone=alone, outputs=outputs)


if __name__ == "__main__":
    measure(read_options(), speaker())
